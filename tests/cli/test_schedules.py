"""What recurs and reminder series, by command."""

from pathlib import Path

from tests.cli.conftest import Sendloom

ORDER = ("--category", "orders", "--template", "placed", "--recipient", "r-1", "--var", "order=17")
OFFER = ("schedule", "create", "--category", "offers", "--template", "placed", "--every", "3600")


def test_a_schedule_is_made_paused_resumed_and_deleted_by_command(sendloom: Sendloom):
    made = sendloom.json(
        "schedule", "create", *ORDER, "--cron", "0 9 * * mon", "--zone", "Asia/Tokyo"
    )
    assert (made["state"], made["zone"], made["catch_up"]) == ("active", "Asia/Tokyo", "latest")
    [listed] = sendloom.lines("schedule", "list")
    assert listed == made
    assert sendloom.json("schedule", "pause", made["id"])["state"] == "paused"
    assert sendloom.json("schedule", "resume", made["id"])["state"] == "active"
    assert sendloom.lines("schedule", "triggers", made["id"]) == []
    assert sendloom.json("schedule", "delete", made["id"])["state"] == "deleted"
    assert sendloom.lines("schedule", "list") == []
    assert sendloom("schedule", "resume", made["id"]).exit_code == 1
    hour = ("2026-05-05T09:00:00+02:00", "2026-05-05T10:00:00+02:00")
    assert sendloom.lines("triggers", *hour) == []


def test_a_campaign_to_a_segment_recurs_by_command(sendloom: Sendloom, tmp_path: Path):
    file = tmp_path / "segment.json"
    file.write_text('{"zone": "Asia/Tokyo"}')
    sendloom.json("segment", "put", "cli-tokyo", str(file))
    made = sendloom.json(*OFFER, "--segment", "cli-tokyo", "--var", "order=17")
    assert (made["kind"], made["segment"], made["list_id"]) == ("campaign", "cli-tokyo", None)
    assert sendloom.json("schedule", "show", made["id"])["segment"] == "cli-tokyo"
    assert sendloom(*OFFER, "--segment", "cli-tokyo", "--list", "x").exit_code == 2
    sendloom("segment", "delete", "cli-tokyo")
    refused = sendloom(*OFFER, "--segment", "cli-tokyo")
    assert (refused.exit_code, "unknown_segment" in refused.stderr) == (1, True)
    assert sendloom.json("schedule", "delete", made["id"])["state"] == "deleted"


def test_what_makes_no_sense_is_said_before_anybody_is_asked(sendloom: Sendloom):
    both = sendloom("schedule", "create", *ORDER, "--cron", "0 9 * * *", "--every", "3600")
    assert both.exit_code == 2
    assert "cron" in both.stderr
    assert sendloom("schedule", "create", *ORDER[:4], "--cron", "0 9 * * *").exit_code == 2
    assert sendloom("triggers", "yesterday", "today").exit_code == 2
    refused = sendloom("schedule", "create", *ORDER, "--cron", "at nine")
    assert (refused.exit_code, "bad_cron" in refused.stderr) == (1, True)


def test_a_series_is_made_moved_and_cancelled_by_command(sendloom: Sendloom):
    made = sendloom.json(
        "series", "create", *ORDER, "--before", "P7D", "--before", "PT1H", "--local", "2035-01-15T09:00",
    )  # fmt: skip
    assert [member["before"] for member in made["members"]] == ["P7D", "PT1H"]
    moved = sendloom.json("series", "move", made["id"], "--local", "2035-02-15T09:00")
    assert moved["event_at"] == "2035-02-15T08:00:00Z"
    assert sendloom.json("series", "cancel", made["id"])["state"] == "cancelled"
    assert sendloom.json("series", "show", made["id"])["state"] == "cancelled"
