"""Uploading files: cut between records, resumed where it stopped, bad lines told by number."""

import io
import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from sendloom.cli._chunks import chunks
from tests.cli.conftest import Sendloom, Served


def ndjson(size: int) -> str:
    row = "x" * 1000
    return "".join(
        json.dumps({"recipient_id": f"r-{n}", "variables": {"row": row}}) + "\n"
        for n in range(size)
    )


def puts(served: Served) -> list[str]:
    return [
        path for method, path in served.counting.asked if method == "PUT" and "/chunks/" in path
    ]


def test_a_file_becomes_a_ready_list_and_the_same_file_is_not_sent_twice(
    sendloom: Sendloom, served: Served, tmp_path: Path
):
    file = tmp_path / "people.ndjson"
    file.write_text(ndjson(5000))  # over two chunks
    served.counting.asked.clear()
    said = sendloom.json("list", "upload", "all", str(file))
    assert (said["state"], said["size"], said["rejected"]) == ("ready", 5000, 0)
    assert len(puts(served)) == 3
    again = sendloom.json("list", "upload", "all", str(file))
    assert again["version_id"] == said["version_id"]
    assert len(puts(served)) == 3
    new = sendloom.json("list", "upload", "all", str(file), "--again", "2")
    assert new["version_id"] != said["version_id"]


def test_an_interrupted_upload_goes_on_where_it_stopped(
    sendloom: Sendloom, served: Served, tmp_path: Path
):
    from sendloom.cli._chunks import digest
    from sendloom.client import SendloomClient

    file = tmp_path / "people.ndjson"
    file.write_text(ndjson(5000))
    with (
        SendloomClient(served.url, sendloom.env["SENDLOOM_CLIENT__API_KEY"]) as client,
        file.open("rb") as opened,
    ):
        client.put_list("all")
        version = client.start_upload("all", key=f"file-{digest(file)}")
        cut = chunks(opened, "ndjson")
        for chunk in (next(cut), next(cut)):
            client.put_chunk("all", version.version_id, chunk.number, chunk.data)
    served.counting.asked.clear()
    said = sendloom.json("list", "upload", "all", str(file))
    assert (said["state"], said["size"]) == ("ready", 5000)
    assert [path.rpartition("/")[2] for path in puts(served)] == ["2"]


def test_c19_and_c52_a_spreadsheets_file_is_read_and_its_bad_lines_are_told_by_number(
    sendloom: Sendloom, tmp_path: Path
):
    file = tmp_path / "people.csv"
    file.write_bytes(
        "\ufeffrecipient_id;phone;note\r\n"
        'a;+1\u00a0202\u00a0555\u00a00143;"two\r\nlines"\r\n'
        "b;202-555-01;\r\n"
        "c;(202) 555-0144;\r\n".encode()
    )
    done = sendloom("list", "upload", "people", str(file))
    assert done.exit_code == 0
    assert "ready, 2 recipients" in done.stdout
    assert "1 lines were left out" in done.stderr
    assert "line 4, phone: bad_address" in done.stderr
    assert "202-555-01" not in done.stderr


def test_a_list_nobody_can_be_sent_to_exits_with_1(sendloom: Sendloom, tmp_path: Path):
    file = tmp_path / "empty.csv"
    file.write_text("recipient_id\n\n")
    done = sendloom("list", "upload", "empty", str(file), "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["state"] == "failed"
    unnamed = tmp_path / "data.bin"
    unnamed.write_text("x")
    assert sendloom("list", "upload", "empty", str(unnamed)).exit_code == 2


CELLS = st.text(st.sampled_from('ab",;\r\n é'), max_size=12).map(
    lambda text: '"' + text.replace('"', '""') + '"'
)


@given(
    rows=st.lists(st.lists(CELLS, min_size=1, max_size=3), max_size=30),
    bom=st.booleans(),
    target=st.integers(20, 200),
)
def test_csv_is_cut_between_records_and_nothing_is_lost(
    rows: list[list[str]], bom: bool, target: int
):
    header = b"a,b,c\r\n"
    records = [(",".join(row) + "\r\n").encode() for row in rows]
    whole = (b"\xef\xbb\xbf" if bom else b"") + header + b"".join(records)
    cut = list(chunks(io.BytesIO(whole), "csv", target))
    assert b"".join(chunk.data.removeprefix(header) for chunk in cut) == b"".join(records)
    starts, at, line = set(), 0, 2
    for record in records:
        starts.add((at, line))
        at, line = at + len(record), line + record.count(b"\n")
    done = 0
    for number, chunk in enumerate(cut):
        assert chunk.number == number
        assert chunk.data.startswith(header)
        assert (done, chunk.first_line) in starts or not records
        done += len(chunk.data) - len(header)
    if cut:
        assert cut[-1].ends_at == len(whole)


@given(
    lines=st.lists(st.binary(max_size=40).filter(lambda b: b"\n" not in b), max_size=40),
    target=st.integers(1, 100),
    ended=st.booleans(),
)
def test_ndjson_is_cut_between_lines_and_nothing_is_lost(
    lines: list[bytes], target: int, ended: bool
):
    whole = b"\n".join(lines) + (b"\n" if ended and lines else b"")
    cut = list(chunks(io.BytesIO(whole), "ndjson", target))
    assert b"".join(chunk.data for chunk in cut) == whole
    line = 1
    for chunk in cut:
        assert chunk.first_line == line
        line += chunk.data.count(b"\n")
