"""Where a campaign sends, of a category with more rungs than can be."""

from dataclasses import replace

from activities.campaign_ground import channels_of
from schemas.kinds import Channel
from tests.builders import MARKETING, a_category, template_parts
from tests.stores.conftest import a_campaign

EVERY_RUNG = a_category(MARKETING, ladder=(Channel.APNS, Channel.SMS, Channel.EMAIL))
MAIL, SMS = template_parts()[0], template_parts()[-1]
PUSH = replace(MAIL, channel=Channel.APNS)


def test_before_the_freeze_it_is_where_campaigns_can_and_the_template_has_something_to_say():
    row = a_campaign("acme")
    assert channels_of(row, EVERY_RUNG, [PUSH, MAIL]) == (Channel.EMAIL,)
    assert channels_of(row, EVERY_RUNG, [MAIL, SMS]) == (Channel.SMS, Channel.EMAIL)
    assert channels_of(row, EVERY_RUNG, [PUSH]) == ()


def test_after_it_the_pin_alone_says_where():
    row = replace(a_campaign("acme"), channels=(Channel.EMAIL, Channel.SMS))
    assert channels_of(row, EVERY_RUNG, [PUSH, SMS]) == row.channels
