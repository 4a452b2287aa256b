"""Commands as people and scripts use them: output, exit codes, and no traceback for what they can mend."""

import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from tests.cli.conftest import Sendloom, Served


def test_a_tenant_and_its_first_key_are_made_without_a_key(
    bare: Sendloom, new_tenant: Callable[[], str]
):
    tenant = new_tenant()
    assert bare.json("tenant", "create", tenant, "--name", "Acme") == {
        "tenant": tenant,
        "created": True,
    }
    assert bare.json("tenant", "create", tenant, "--zone", "Europe/Paris")["created"] is False
    made = bare.json("key", "create", tenant, "--kind", "test", "--scope", "send", "--days", "30")
    assert re.fullmatch(rf"sl_test_{tenant}_[0-9a-f]+_[\w-]{{43}}", made["key"])
    [listed] = bare.lines("key", "list", tenant)
    assert (listed["key_id"], listed["scopes"]) == (made["key_id"], ["send"])
    assert made["key"] not in json.dumps(listed)
    using = Sendloom({**bare.env, "SENDLOOM_CLIENT__API_KEY": made["key"]})
    refused = using("category", "list")
    assert refused.exit_code == 0
    assert bare.json("key", "revoke", tenant, made["key_id"]) == {"revoked": made["key_id"]}
    refused = using("category", "list")
    assert refused.exit_code == 1
    assert "key_revoked" in refused.stderr
    again = bare("key", "revoke", tenant, made["key_id"])
    assert again.exit_code == 1


def test_what_cannot_be_a_tenant_or_key_is_said_before_anything_is_written(bare: Sendloom):
    assert bare("tenant", "create", "Not A Tenant").exit_code == 2
    assert bare("tenant", "create", "ok", "--zone", "GMT+25").exit_code == 2
    assert bare("key", "create", "nobody-here").exit_code == 1
    assert bare("key", "create", "nobody-here", "--kind", "root").exit_code == 2
    assert bare("key", "create", "nobody-here", "--scope", "root").exit_code == 2


def test_one_message_from_send_to_what_became_of_it(sendloom: Sendloom, served: Served):
    sent = sendloom.json(
        "send", "--recipient", "r-1", "--category", "orders", "--template", "placed",
        "--var", "order=17", "--key", "order-17",
    )  # fmt: skip
    again = sendloom.json(
        "send", "--recipient", "r-1", "--category", "orders", "--template", "placed",
        "--var", "order=17", "--key", "order-17",
    )  # fmt: skip
    assert again == {**sent, "replayed": True}
    assert sendloom.json("notification", "show", sent["id"])["state"] == "pending"
    [listed] = sendloom.lines("recipient", "messages", "r-1")
    assert listed["id"] == sent["id"]
    shown = sendloom("notification", "show", sent["id"])
    assert shown.exit_code == 0
    assert re.search(r"state\s+pending", shown.stdout)


def test_a_refusal_exits_with_1_and_says_its_code_and_what_to_do(sendloom: Sendloom):
    done = sendloom("send", "--recipient", "r-1", "--category", "nope", "--template", "placed")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert "unknown_category (category)" in done.stderr
    assert "PUT /v1/categories" in done.stderr
    assert sendloom("send", "--recipient", "r-1").exit_code == 2
    bad = sendloom(
        "send", "--recipient", "r-1", "--category", "orders", "--template", "placed", "--var", "x"
    )
    assert bad.exit_code == 2


def test_nobody_answering_exits_with_69(sendloom: Sendloom):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        done = Sendloom({**sendloom.env, "SENDLOOM_CLIENT__URL": url})("category", "list")
    assert done.exit_code == 69
    assert "no answer from" in done.stderr


def test_without_a_key_it_exits_with_78_and_says_how_to_make_one(bare: Sendloom):
    import os

    done = subprocess.run(
        [sys.executable, "-m", "sendloom.cli", "category", "list"],
        env={**{k: v for k, v in os.environ.items() if not k.startswith("SENDLOOM")}, **bare.env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 78
    assert "sendloom key create" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_cannot_be_a_request_is_named_in_one_line_without_its_value(sendloom: Sendloom):
    import os

    for typed, field in (
        (
            ["send", "--recipient", "ana@example.org", "--category", "c", "--template", "t"],
            "recipient_id",
        ),
        (["recipient", "put", "ana", "--locale", "deutsch_DE"], "locale"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "sendloom.cli", *typed],
            env={
                **{k: v for k, v in os.environ.items() if not k.startswith("SENDLOOM")},
                **sendloom.env,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith(f"sendloom: {field}: ")
        assert "Traceback" not in done.stderr
        assert "ana@example.org" not in done.stderr


def test_a_passcode_is_sent_and_checked_and_a_wrong_code_exits_with_1(
    bare: Sendloom, sendloom: Sendloom
):
    test_key = bare.json("key", "create", sendloom.env["TENANT"], "--kind", "test")["key"]
    testing = Sendloom({**sendloom.env, "SENDLOOM_CLIENT__API_KEY": test_key})
    sent = testing.json(
        "passcode", "send", "--recipient", "r-1", "--category", "security.otp",
        "--template", "otp", "--wait", "0",
    )  # fmt: skip
    wrong = testing("passcode", "check", sent["id"], "999999", "--json")
    assert wrong.exit_code == 1
    assert json.loads(wrong.stdout)["result"] == "wrong"
    asked = testing("passcode", "check", sent["id"], input="012345\n")
    assert asked.exit_code == 0
    assert "012345" not in asked.stdout
    assert testing.json("passcode", "show", sent["id"])["passcode"] == "used"
    assert testing("passcode", "send", "--category", "x", "--template", "y").exit_code == 2


def test_reminders_are_set_moved_and_cancelled_together(sendloom: Sendloom):
    made = [
        sendloom.json(
            "reminder",
            "create",
            "--recipient",
            "r-1",
            "--category",
            "orders",
            "--template",
            "placed",
            "--var",
            "order=1",
            "--local",
            "2035-01-15T09:00",
            "--correlation-id",
            "booking-1",
            "--key",
            f"r-{n}",
        )
        for n in range(3)
    ]
    assert made[0]["due_at"] == "2035-01-15T08:00:00Z"
    sendloom.json("reminder", "reschedule", made[0]["id"], "--at", "2035-02-01T00:00:00Z")
    assert sendloom.json("reminder", "show", made[0]["id"])["state"] == "scheduled"
    assert sendloom.json("reminder", "cancel", made[0]["id"])["state"] == "cancelled"
    many = sendloom.json("reminder", "cancel", "--correlation-id", "booking-1")
    assert many == {"cancelled": 2, "already_closed": 1, "too_late": []}
    assert sendloom("reminder", "cancel").exit_code == 2
    assert sendloom("reminder", "reschedule", made[1]["id"]).exit_code == 2


def test_preferences_consents_and_suppressions(sendloom: Sendloom):
    [out] = sendloom.lines("recipient", "opt-out", "r-1", "--category", "offers")
    assert (out["category"], out["opted_out"], out["source"]) == ("offers", True, "cli")
    [back] = sendloom.lines("recipient", "opt-in", "r-1", "--category", "offers")
    assert back["opted_out"] is False
    [given] = sendloom.lines(
        "recipient", "consent", "r-1", "--category", "offers", "--source", "phone",
        "--wording", "Yes please",
    )  # fmt: skip
    assert given["granted"] is True
    sendloom.json("suppression", "add", "email", "ADA@example.com")
    assert sendloom.json("recipient", "show", "r-1")["addresses"][0]["suppressed"] == "manual"
    assert len(sendloom.lines("suppression", "list")) == 1
    sendloom.json("suppression", "remove", "email", "ada@example.com")
    assert sendloom.lines("suppression", "list") == []
    kept = sendloom("recipient", "erase", "r-1", input="n\n")
    assert kept.exit_code == 1
    assert sendloom.json("recipient", "erase", "r-1", "--yes") == {"erased": "r-1"}


def test_templates_are_previewed_and_a_bad_file_names_the_field(
    sendloom: Sendloom, tmp_path_factory: object, served: Served
):
    said = sendloom.json(
        "template", "preview", "placed", "--recipient", "r-1", "--channel", "email",
        "--var", "order=9",
    )  # fmt: skip
    assert said["subject"] == "Order 9"
    assert sendloom.json("template", "show", "placed")["version"] == 1
    assert (
        sendloom(
            "template", "preview", "placed", "--recipient", "r-1", "--channel", "fax"
        ).exit_code
        == 2
    )


def test_an_empty_list_of_dead_letters_and_an_unknown_one(sendloom: Sendloom):
    assert sendloom.lines("dead-letters", "list") == []
    assert sendloom.json("dead-letters", "replay", "--all") == {"replayed": 0, "left": 0}
    assert sendloom("dead-letters", "replay", str(uuid4())).exit_code == 1
    assert sendloom("dead-letters", "replay").exit_code == 2


def test_help_of_every_command_is_there(sendloom: Sendloom):
    top = sendloom("--help")
    names = re.findall(r"^│ ([a-z-]+)  ", top.stdout, re.MULTILINE)
    assert {"send", "passcode", "reminder", "campaign", "list", "recipient", "template"} <= set(
        names
    )
    for name in (
        "send",
        "passcode",
        "reminder",
        "campaign",
        "list",
        "recipient",
        "template",
        "key",
    ):
        assert sendloom(name, "--help").exit_code == 0


def test_preflight_tells_what_is_wrong_and_exits_with_1(sendloom: Sendloom, tmp_path: Path):
    audience = tmp_path / "all.ndjson"
    audience.write_text('{"recipient_id": "c-1", "email": "c1@example.com"}\n')
    assert sendloom("list", "upload", "all", str(audience)).exit_code == 0
    asked = ("--category", "offers", "--template", "placed", "--list", "all")
    bad = sendloom("campaign", "preflight", *asked, "--json")
    assert bad.exit_code == 1
    assert json.loads(bad.stdout)["code"] == "preflight_failed"
    good = sendloom.json("campaign", "preflight", *asked, "--var", "order=1")
    assert (good["ok"], good["checked"]) == (True, 1)
    both = sendloom("campaign", "preflight", *asked, "--sent-of", str(uuid4()))
    assert both.exit_code == 2


def test_a_tenants_agreed_rates_and_approval_size_are_told_by_a_preflight(
    bare: Sendloom, sendloom: Sendloom, tmp_path: Path
):
    tenant = sendloom.env["TENANT"]
    for rate in ("email", "email=0", "pigeon=5", "email=fast"):
        assert bare("tenant", "create", tenant, "--rate", rate).exit_code == 2
    made = bare("tenant", "create", tenant, "--rate", "email=0.5", "--approval-over", "0")
    assert made.exit_code == 0, made.stderr
    audience = tmp_path / "few.ndjson"
    audience.write_text('{"recipient_id": "c-1", "email": "c1@example.com"}\n')
    assert sendloom("list", "upload", "few", str(audience)).exit_code == 0
    report = sendloom.json(
        "campaign", "preflight", "--category", "offers", "--template", "placed",
        "--list", "few", "--var", "order=1",
    )  # fmt: skip
    assert (report["rate_per_second"], report["approval_needed"]) == (0.5, True)
