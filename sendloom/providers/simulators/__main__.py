"""`python -m sendloom.providers.simulators`: the simulators as a process of their own."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from sendloom.errors import ConfigurationError
from sendloom.providers.simulators.certificates import server_context
from sendloom.providers.simulators.server import SimulatorSettings, serve
from sendloom.providers.simulators.smtp import SmtpOptions
from sendloom.providers.simulators.twilio import TwilioOptions

TOKEN_VARIABLE = "SENDLOOM_SIMULATOR_TWILIO_TOKEN"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m sendloom.providers.simulators",
        description="An SMTP sink, a Twilio-style messages API and an inbox. docs/simulators.md names the magic recipients.",
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--smtp-port", type=int, default=2525, help="0 takes a free one")
    parser.add_argument(
        "--http-port", type=int, default=8025, help="messages API and inbox; 0 takes a free one"
    )
    parser.add_argument(
        "--log", type=Path, metavar="FILE", help="append every arrival as a line of JSON"
    )
    parser.add_argument(
        "--ports-file", type=Path, metavar="FILE", help="write the two ports here once both answer"
    )
    parser.add_argument(
        "--capacity",
        type=int,
        default=20_000,
        help="messages kept for reading; counts are never forgotten",
    )
    parser.add_argument("--account-sid", default=TwilioOptions().account_sid)
    parser.add_argument(
        "--smtp-cert", type=Path, metavar="PEM", help="offer STARTTLS with this certificate"
    )
    parser.add_argument("--smtp-key", type=Path, metavar="PEM")
    parser.epilog = f"The messages API's token is read from {TOKEN_VARIABLE}."
    chosen = parser.parse_args(arguments)
    if (chosen.smtp_cert is None) != (chosen.smtp_key is None):
        parser.error("--smtp-cert and --smtp-key go together")

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(
        logging.WARNING
    )  # it logs every URL, and ours carry references
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    settings = SimulatorSettings(
        host=chosen.host,
        smtp_port=chosen.smtp_port,
        http_port=chosen.http_port,
        log=chosen.log,
        capacity=chosen.capacity,
        smtp=SmtpOptions(
            tls=server_context(chosen.smtp_cert, chosen.smtp_key) if chosen.smtp_cert else None
        ),
        twilio=TwilioOptions(
            account_sid=chosen.account_sid,
            auth_token=os.environ.get(TOKEN_VARIABLE) or TwilioOptions().auth_token,
        ),
    )
    try:
        uvloop.run(serve(settings, ports_file=chosen.ports_file))
    except ConfigurationError as e:
        logging.getLogger(__name__).error("%s", e)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
