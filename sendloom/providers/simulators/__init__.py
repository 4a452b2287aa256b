"""Providers to talk to when there are none: real protocols on real sockets, and faults on demand."""

from sendloom.providers.simulators.server import Simulators, SimulatorSettings, serve
from sendloom.providers.simulators.smtp import SmtpOptions
from sendloom.providers.simulators.twilio import TwilioOptions

__all__ = ["SimulatorSettings", "Simulators", "SmtpOptions", "TwilioOptions", "serve"]
