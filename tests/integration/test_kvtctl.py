# SPDX-License-Identifier: Apache-2.0
"""kvtctl against daemons that are absent, stuck, foreign or forbidding, and its lists."""
import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from fake_kvtd import FakeKvtd, HELLO, LIST, STATUS, field, fields, hello_reply

BUILD = pathlib.Path(os.environ["KVT_BUILD"])
SOURCE = pathlib.Path(__file__).resolve().parents[2]
OBJECTS = ["client", "region", "cache", "grant", "transfer", "peer"]
ROWS = {name: i + 2 for i, name in enumerate(OBJECTS)}  # fields of Rows
ADMIN = [["cancel", "1"], ["revoke", "1"], ["drain"], ["resume"], ["reload"]]
COMMANDS = [["status"]] + [[o] for o in OBJECTS] + [["grant", "show", "7"]] + ADMIN


def kvtctl(*args, program=BUILD / "kvtctl", **kw):
    if kw.get("input") is None:
        kw.update(input=None, stdin=subprocess.DEVNULL)
    return subprocess.run([program, *map(str, args)], capture_output=True, text=True, timeout=60,
                          **kw)


def one_line(text):
    """kvtctl's errors are one line."""
    assert text.startswith("kvtctl: ") and text.endswith("\n") and text.count("\n") == 1, text
    return text


@pytest.fixture
def fake(folder):
    """Starts fakes on folder/NAME."""
    fakes = []

    def start(answer, name="admin.sock"):
        fakes.append(FakeKvtd(folder / name, answer))
        return fakes[-1]
    yield start
    for f in fakes:
        f.close()


# ---------------------------------------------------------------- no good daemon

@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_daemon(folder, command):
    r = kvtctl("-a", folder / "none", *command)
    assert r.returncode == 3 and r.stdout == ""
    assert str(folder / "none") in one_line(r.stderr) and "is kvtd running?" in r.stderr


def test_no_daemon_on_either_socket(folder):
    r = kvtctl("-a", folder / "admin", "-s", folder / "client", "status")
    assert r.returncode == 3
    assert str(folder / "admin") in one_line(r.stderr)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_stuck_daemon(folder, fake, command):
    fake(lambda what, body: None)
    r = kvtctl("-a", folder / "admin.sock", "--timeout", "200ms", *command)
    assert r.returncode == 5 and r.stdout == ""
    assert "200 ms" in one_line(r.stderr)


def test_stuck_after_hello(folder, fake):
    fake(lambda what, body: hello_reply() if what == HELLO else None)
    r = kvtctl("-a", folder / "admin.sock", "--timeout", "200ms", "grant")
    assert r.returncode == 5 and one_line(r.stderr)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_other_version(folder, fake, command):
    fake(lambda what, body: hello_reply(major=7))
    r = kvtctl("-a", folder / "admin.sock", *command)
    assert r.returncode == 1 and r.stdout == ""
    assert "protocol 7.0, this program 1.0" in one_line(r.stderr)


def test_refused_for_its_version(folder, fake):
    fake(lambda what, body: field(2, 10) + field(3, "protocol 1.0: this daemon speaks 2"))
    r = kvtctl("-a", folder / "admin.sock", "status")
    assert r.returncode == 1
    assert "this daemon speaks 2" in one_line(r.stderr)


@pytest.mark.parametrize("command", ADMIN, ids=" ".join)
def test_refused(folder, fake, command):
    fake(lambda what, body: hello_reply() if what == HELLO else
         field(2, 4) + field(3, "only on the admin socket"))
    r = kvtctl("-a", folder / "admin.sock", *command)
    assert r.returncode == 1
    assert "only on the admin socket" in one_line(r.stderr)


def test_not_found(folder, fake):
    fake(lambda what, body: hello_reply() if what == HELLO else
         field(2, 2) + field(3, "grant 7: there is none"))
    for command in ["revoke", "7"], ["grant", "show", "7"]:
        r = kvtctl("-a", folder / "admin.sock", *command)
        assert r.returncode == 4 and "grant 7" in one_line(r.stderr)
    for command in ["reload"], ["drain"], ["status"]:  # which name no object
        assert kvtctl("-a", folder / "admin.sock", *command).returncode == 1


# ---------------------------------------------------------------- who may what

@pytest.fixture
def nobody(folder):
    """Runs kvtctl as a user who may not use the admin socket."""
    program = folder / "kvtctl"
    shutil.copy(BUILD / "kvtctl", program)
    folder.chmod(0o711)
    who = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    return lambda *args: kvtctl(*args, program=program, **who)


def test_fall_back_to_the_client_socket(folder, fake, nobody):
    (folder / "admin").mkdir()
    fake(lambda what, body: hello_reply(), "admin/sock")
    fake(lambda what, body: hello_reply() if what == HELLO else field(LIST, b""), "client")
    (folder / "client").chmod(0o777)
    (folder / "admin").chmod(0)
    sockets = ["-a", folder / "admin/sock", "-s", folder / "client"]
    try:
        r = nobody(*sockets, "grant", "--json")
        assert r.returncode == 0 and json.loads(r.stdout) == {"grants": []}
        assert re.fullmatch(r"\(as uid \d+: own objects only\)\n", r.stderr)
        for command in ADMIN:  # these never fall back
            r = nobody(*sockets, *command)
            assert r.returncode == 1 and r.stdout == ""
            assert "Permission denied (run as root?)" in one_line(r.stderr)
        r = nobody("-a", folder / "admin/sock", "grant")
        assert r.returncode == 1 and "Permission denied" in one_line(r.stderr)
    finally:
        (folder / "admin").chmod(0o700)


@pytest.mark.parametrize("command", ADMIN, ids=" ".join)
def test_client_socket_is_not_for_administrators(folder, command):
    r = kvtctl("-s", folder / "client", *command)
    assert r.returncode == 2 and "admin socket" in one_line(r.stderr)


# ---------------------------------------------------------------- lists

def rows_of(name, ids):
    """Rows of an object with an id and, of grants, more."""
    def row(i):
        if name != "grant":
            return field(1, i)
        return (field(1, i) + field(2, 3) + field(4, "read") + field(5, "live") + field(6, 128) +
                field(7, 268435456) + field(8, 1) + field(12, 61500) + field(13, 1500) +
                field(15, "request 17"))
    return b"".join(field(ROWS[name], row(i)) for i in ids)


def server_of(name, ids, page=2):
    """Serves ids in pages."""
    def answer(what, body):
        if what == HELLO:
            return hello_reply()
        assert what == LIST
        asked = dict(fields(body))
        assert asked[1] == ROWS[name] - 1
        if asked.get(4, 0):
            return field(LIST, rows_of(name, [asked[4]]))
        left = [i for i in ids if i > asked.get(2, 0)]
        return field(LIST, field(1, int(len(left) > page)) + rows_of(name, left[:page]))
    return answer


@pytest.mark.parametrize("name", OBJECTS)
@pytest.mark.parametrize("ids", [[], [5], list(range(1, 200, 3))], ids=["none", "one", "many"])
def test_lists(folder, fake, name, ids):
    fake(server_of(name, ids))
    sock = ["-a", folder / "admin.sock"]

    r = kvtctl(*sock, name, "--json")
    assert r.returncode == 0
    data = json.loads(r.stdout)
    assert list(data) == [name + "s"] and [row["id"] for row in data[name + "s"]] == ids

    r = kvtctl(*sock, name, "list")
    lines = r.stdout.splitlines()
    if ids:
        assert lines[0].split()[0] == "ID" and lines[0] == lines[0].upper()
        assert [int(line.split()[0]) for line in lines[1:]] == ids
        width = len(lines[0]) - len(lines[0].lstrip()) + 2
        assert all(line[:width].strip() == str(i) for line, i in zip(lines[1:], ids))
    else:  # the headings all the same
        assert len(lines) == 1 and lines[0].split()[0] == "ID" and lines[0] == lines[0].upper()
        raw = kvtctl(*sock, name, "-r").stdout
        assert raw.split() == lines[0].split() and raw.count("\n") == 1
        assert kvtctl(*sock, name, "-n").stdout == ""

    r = kvtctl(*sock, name, "-r", "-n", "-o", "id")
    assert [int(x) for x in r.stdout.splitlines()] == ids


def test_values(folder, fake):
    fake(server_of("grant", [7]))
    sock = ["-a", folder / "admin.sock"]
    cols = "ID,BYTES,AGE,LEFT,STATUS,TAG"

    r = kvtctl(*sock, "grant", "-n", "-o", cols)
    assert re.split(r" {2,}|(?<=\d) (?=256)", r.stdout.strip())[0] == "7"
    assert "256 MiB" in r.stdout and "1.5 s" in r.stdout and "1 min 1 s" in r.stdout
    r = kvtctl(*sock, "grant", "-n", "-b", "-o", "BYTES")
    assert r.stdout.strip() == "268435456"
    r = kvtctl(*sock, "grant", "-n", "-r", "-o", cols.lower())
    assert r.stdout == "7 268435456 61500 1500 - request\\x2017\n"
    r = kvtctl(*sock, "grant", "--json", "-o", cols)
    assert json.loads(r.stdout) == {"grants": [{
        "id": 7, "bytes": 268435456, "age_ms": 61500, "left_ms": 1500, "status": "",
        "tag": "request 17"}]}


def test_numbers_that_are_not_there(folder, fake):
    """A new peer has no round trip, a transfer without a deadline none that is left."""
    def answer(what, body):
        if what == HELLO:
            return hello_reply()
        return field(LIST, field(dict(fields(body))[1] + 1, field(1, 3)))
    fake(answer)
    sock = ["-a", folder / "admin.sock"]
    for name, cols, key in (("peer", "RTT,AGE", "round_trip_us"), ("grant", "LEFT,AGE", "left_ms"),
                            ("transfer", "LEFT,AGE", "left_ms"),
                            ("transfer", "GRANT,AGE", "grant")):
        assert kvtctl(*sock, name, "-n", "-o", cols).stdout.split() == ["-", "0", "s"]
        assert kvtctl(*sock, name, "-n", "-r", "-o", cols).stdout == "- 0\n"
        (row,) = json.loads(kvtctl(*sock, name, "-J").stdout)[name + "s"]
        assert row[key] == 0


def test_show(folder, fake):
    fake(server_of("grant", []))
    r = kvtctl("-a", folder / "admin.sock", "grant", "show", "7")
    shown = {line.split(None, 1)[0]: line.split(None, 1)[1] for line in r.stdout.splitlines()}
    assert r.returncode == 0 and shown["ID"] == "7" and shown["BYTES"] == "256 MiB"
    assert shown["FAILED"] == "0"
    r = kvtctl("-a", folder / "admin.sock", "grant", "show", "7", "--json")
    data = json.loads(r.stdout)
    assert len(data["grants"]) == 1 and data["grants"][0]["attempts"] == 0


def test_status_of_a_degraded_daemon(folder, fake):
    part = field(1, "tcp") + field(3, "absent, because nothing listens")
    status = (field(1, "0.1.0") + field(2, "degraded") + field(3, "peer node3 unreachable") +
              field(4, "node-a") + field(10, field(1, "local") + field(2, 1) +
                                               field(4, "copies by hand")) + field(10, part))
    fake(lambda what, body: hello_reply() if what == HELLO else field(STATUS, status))
    r = kvtctl("-a", folder / "admin.sock", "status")
    lines = r.stdout.splitlines()
    assert r.returncode == 0 and lines[0] == "kvtd 0.1.0: degraded: peer node3 unreachable"
    assert any(re.fullmatch(r"\s+transports\s+local", line) for line in lines)
    assert any(re.fullmatch(r"\s+local: copies by hand", line) for line in lines)
    assert any(re.fullmatch(r"\s+tcp: absent, because nothing listens", line) for line in lines)
    status += field(14, 290 << 20) + field(15, 1 << 40) + field(23, 5 << 20) + field(25, 3 << 20)
    plain = kvtctl("-a", folder / "admin.sock", "status", "-b").stdout
    assert "304087040 of 1099511627776" in plain and "5242880 moved" in plain
    assert "3145728 of its own memory" in plain
    assert "290 MiB of 1 TiB" in kvtctl("-a", folder / "admin.sock", "status").stdout
    r = kvtctl("-a", folder / "admin.sock", "status", "--json")
    assert json.loads(r.stdout)["status"]["transports"][1] == {
        "name": "tcp", "present": False, "why": "absent, because nothing listens", "how": ""}


def test_status_of_trust(folder, fake):
    """What it proves itself with, in words and in JSON."""
    keys = [field(31, "1f2e3d4c5b6a7988"), field(31, "00112233445566ff")]
    encrypt = field(33, "require")
    for status, words, data in (
            (field(30, "insecure loopback") + field(33, "yes"), [
                r"trust       insecure loopback"], ["insecure loopback", [], "", "yes"]),
            (field(30, "key") + keys[0] + encrypt, [
                "trust       key 1f2e3d4c5b6a7988", "encrypt     require"],
             ["key", ["1f2e3d4c5b6a7988"], "", "require"]),
            (field(30, "key") + b"".join(keys) + encrypt, [
                "trust       key 1f2e3d4c5b6a7988 (accepts 2 keys)", "encrypt     require"],
             ["key", ["1f2e3d4c5b6a7988", "00112233445566ff"], "", "require"]),
            (field(30, "certificate") + keys[0] + field(32, "2027-01-31T10:00:00Z") +
             field(33, "no"), [
                 "trust       certificate 1f2e3d4c5b6a7988, until 2027-01-31",
                 "encrypt     no"],
             ["certificate", ["1f2e3d4c5b6a7988"], "2027-01-31T10:00:00Z", "no"])):
        name = f"{data[0]}{len(data[1])}"
        fake(lambda what, body, status=status: hello_reply() if what == HELLO else
             field(STATUS, status), name)
        r = kvtctl("-a", folder / name, "status")
        lines = [line.strip() for line in r.stdout.splitlines()]
        assert [n for n in lines if n.startswith(("trust", "encrypt"))] == words
        got = json.loads(kvtctl("-a", folder / name, "status", "--json").stdout)["status"]
        assert [got[k] for k in ("trust", "fingerprints", "trust_until", "encrypt")] == data


def test_what_a_peer_proved(folder, fake):
    row = (field(1, 3) + field(2, "node-b") + field(16, "certificate node-b") + field(17, "ktls"))
    fake(lambda what, body: hello_reply() if what == HELLO else
         field(LIST, field(ROWS["peer"], row)))
    r = kvtctl("-a", folder / "admin.sock", "peer", "-o", "node,identity,encryption", "-r", "-n")
    assert r.stdout == "node-b certificate\\x20node-b ktls\n"
    assert "IDENTITY" not in kvtctl("-a", folder / "admin.sock", "peer").stdout
    r = kvtctl("-a", folder / "admin.sock", "peer", "--json")
    peer, = json.loads(r.stdout)["peers"]
    assert peer["identity"] == "certificate node-b" and peer["encryption"] == "ktls"


def test_drain_waits(folder, fake):
    left = [3, 2, 1, 0]

    def answer(what, body):
        if what == HELLO:
            return hello_reply()
        if what == STATUS:
            return field(STATUS, field(17, left.pop(0) if len(left) > 1 else left[0]))
        return b""
    daemon = fake(answer)
    assert kvtctl("-a", folder / "admin.sock", "drain").returncode == 0
    assert STATUS not in daemon.asked
    r = kvtctl("-a", folder / "admin.sock", "drain", "--timeout", "20s")
    assert r.returncode == 0 and left == [0]
    left[:] = [2]
    r = kvtctl("-a", folder / "admin.sock", "drain", "--timeout", "100ms")
    assert r.returncode == 5 and "2 grants" in one_line(r.stderr)


# ---------------------------------------------------------------- command line

@pytest.mark.parametrize("args", [
    [], ["frob"], ["grant", "frob"], ["grant", "show"], ["grant", "show", "x"],
    ["grant", "show", "0"], ["cancel"], ["cancel", "1", "2"], ["status", "now"], ["--frob"],
    ["grant", "-o", "ID,FROB"], ["grant", "-o", ""], ["drain", "--timeout", "5"],
    ["help", "frob"], ["status", "-o", "ID"], ["status", "-J", "-o", "ID"], ["status", "-r"],
    ["status", "-n"], ["cancel", "1", "-J"], ["drain", "-b"], ["reload", "-n"], ["resume", "-r"],
    ["version", "-b", "-J"]], ids=" ".join)
def test_usage(folder, args):
    r = kvtctl("-a", folder / "none", *args)
    assert r.returncode == 2 and r.stdout == "" and r.stderr


def test_version_without_daemon(folder):
    r = kvtctl("-a", folder / "none", "version")
    assert r.returncode == 3 and re.fullmatch(r"kvtctl \d+\.\d+\.\d+\n", r.stdout)
    assert kvtctl("--version").stdout == r.stdout


def test_output_that_cannot_be_written(folder, fake):
    fake(server_of("grant", [7]))
    with open("/dev/full", "w") as full:
        r = subprocess.run([BUILD / "kvtctl", "-a", folder / "admin.sock", "grant"],
                           stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert r.returncode == 1 and one_line(r.stderr)


def test_help_and_man_page_say_what_the_tables_say():
    page = (SOURCE / "man/kvtctl.1").read_text()
    text = kvtctl("help").stdout
    for name in OBJECTS:
        section = page.split(f".Ss {name}\n")[1].split(".El")[0]
        said = re.findall(r"\.It (\S+?)(\+?) Ta (\S+) Ta (.*)", section)
        columns = re.findall(r"^  (\S+)\s+(\S+)\s+(.*?)( \(with -o\))?$",
                             kvtctl("help", name).stdout, re.M)
        assert [(n, "+" if extra else "", key, help) for n, key, help, extra in columns] == said
        assert all(n in text for n, *_ in columns)
    for command in re.findall(r"^  ([a-z]+) ", text.split("Commands:")[1].split("Options:")[0],
                              re.M):
        assert re.search(rf"^\.It Cm {command}\b", page, re.M), command
    for option in re.findall(r"--([a-z-]+)", text.split("Options:")[1]):
        assert f"Fl -{option}" in page, option
