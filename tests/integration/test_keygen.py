# SPDX-License-Identifier: Apache-2.0
"""kvtctl keygen: keys, their files, and the way from one key to the next."""
import fcntl
import hashlib
import json
import os
import re
import stat

import pytest

from test_kvtctl import kvtctl as run, one_line

pytestmark = pytest.mark.plain

HEX = re.compile("[0-9a-f]{64}")


def kvtctl(*args, input=None):
    """As run(), and no word of it has a key that it should not have."""
    r = run(*args, input=input)
    for text in [r.stderr] + ([r.stdout] if "--show" in args or len(args) > 1 else []):
        assert not HEX.search(text), text
    return r


def fingerprint(key):
    return hashlib.sha256(bytes.fromhex(key)).hexdigest()[:16]


def shown(path):
    """Fingerprints in the order of the file."""
    r = kvtctl("keygen", "--show", path, "--json")
    assert r.returncode == 0, r.stderr
    keys = json.loads(r.stdout)["keys"]
    assert [k["dials"] for k in keys] == [True] + [False] * (len(keys) - 1)
    return [k["fingerprint"] for k in keys]


@pytest.fixture
def path(folder):
    """Of a file with a comment, two keys, and no newline at its end."""
    path = folder / "keys"
    path.write_text(f"# of cluster a\n\n{'aB' * 32}\n# the next\n  {'0c' * 32}")
    path.chmod(0o600)
    return path


OLD, NEXT = fingerprint("ab" * 32), fingerprint("0c" * 32)


def test_on_standard_output():
    keys = set()
    for _ in range(3):
        r = run("keygen")
        assert r.returncode == 0 and re.fullmatch("[0-9a-f]{64}\n", r.stdout)
        assert r.stderr == f"# fingerprint {fingerprint(r.stdout.strip())}\n"
        keys.add(r.stdout)
    assert len(keys) == 3
    r = kvtctl("keygen", "--json")
    assert r.returncode == 2 and r.stdout == ""
    assert "FILE" in one_line(r.stderr)


def test_new_file(folder):
    path = folder / "new"
    before = os.umask(0o277)  # not even the owner could read it
    try:
        r = kvtctl("keygen", path)
    finally:
        os.umask(before)
    assert r.returncode == 0 and r.stderr == ""
    text = path.read_text()
    assert re.fullmatch("[0-9a-f]{64}\n", text)
    assert r.stdout == f"{path}: key {fingerprint(text.strip())}\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    r = kvtctl("keygen", path)
    assert r.returncode == 1 and r.stdout == ""
    assert f"{path} exists already: --show says what it has, --add adds a key" in \
        one_line(r.stderr)
    assert path.read_text() == text
    (folder / "link").symlink_to(folder / "elsewhere")
    assert kvtctl("keygen", folder / "link").returncode == 1
    assert not (folder / "elsewhere").exists()
    r = kvtctl("keygen", folder / "none" / "new")
    assert r.returncode == 1 and "No such file or directory" in one_line(r.stderr)
    r = kvtctl("keygen", folder / "other", "--json")
    assert json.loads(r.stdout) == {"keys": [{"fingerprint": shown(folder / "other")[0],
                                              "line": 1, "dials": True}]}


def test_show(path):
    r = kvtctl("keygen", "--show", path)
    assert r.returncode == 0
    assert r.stdout == (f"FINGERPRINT      LINE USE\n{OLD}    3 dials, accepted\n"
                        f"{NEXT}    5 accepted\n")
    assert kvtctl("keygen", "-n", "--show", path).stdout.splitlines() == \
        r.stdout.splitlines()[1:]
    assert shown(path) == [OLD, NEXT]


def test_add(path):
    before = path.read_text()
    r = kvtctl("keygen", "--add", path)
    assert r.returncode == 0 and r.stderr == ""
    text = path.read_text()
    assert text.startswith(before + "\n")
    key = text[len(before) + 1:]
    assert re.fullmatch("[0-9a-f]{64}\n", key)
    new = fingerprint(key.strip())
    assert shown(path) == [OLD, NEXT, new]
    assert r.stdout.startswith(f"{path}: key {new}: accepted once its daemon has reloaded, "
                               "not dialled with yet\nnext: this file to every node")
    assert f"kvtctl keygen --first {new} {path}\n" in r.stdout
    assert [p.name for p in path.parent.iterdir()] == ["keys"]
    assert len(json.loads(kvtctl("keygen", "--add", path, "--json").stdout)["keys"]) == 4


def test_import(path):
    r = run("keygen", "--import", path, input="# new\n" + "ee" * 32 + "\n")
    assert r.returncode == 0 and not HEX.search(r.stdout + r.stderr)
    assert shown(path) == [OLD, NEXT, fingerprint("ee" * 32)]
    text = path.read_text()
    r = run("keygen", "--import", path, input="ee" * 32)  # once more is as good
    assert r.returncode == 0 and "already" in r.stdout
    assert path.read_text() == text
    for given, says in (("", "standard input: has no key"),
                        ("ee" * 32 + "\n" + "dd" * 32 + "\n", "has 2 keys, one is wanted"),
                        ("ee" * 31 + "\n", "standard input:1: a key is 64 hexadecimal digits, "
                                           "these are 62 characters"),
                        ("#" * 5000, "standard input: is longer than a key")):
        r = run("keygen", "--import", path, input=given)
        assert r.returncode == 1 and says in one_line(r.stderr) and "eeee" not in r.stderr
    assert path.read_text() == text


def test_first(path):
    r = kvtctl("keygen", "--first", NEXT.upper(), path)
    assert r.returncode == 0
    assert path.read_text() == f"# of cluster a\n\n{'0c' * 32}\n{'aB' * 32}\n# the next\n"
    assert f"kvtctl keygen --remove {OLD} {path}\n" in r.stdout
    text = path.read_text()
    r = kvtctl("keygen", "--first", NEXT, path)
    assert r.returncode == 0 and "is the first already" in r.stdout
    assert path.read_text() == text


def test_remove(path):
    assert kvtctl("keygen", "--remove", NEXT, path).returncode == 0
    assert path.read_text() == f"# of cluster a\n\n{'aB' * 32}\n# the next\n"
    r = kvtctl("keygen", "--remove", OLD, path)
    assert r.returncode == 1 and "is its only one" in one_line(r.stderr)
    assert shown(path) == [OLD]


def test_remove_refuses_the_first(path):
    text = path.read_text()
    r = kvtctl("keygen", "--remove", OLD, path)
    assert r.returncode == 1
    assert f"the one that dials: another has to be the first before (kvtctl keygen --first " \
        f"{NEXT} {path})" in one_line(r.stderr)
    assert path.read_text() == text


def test_rotation(path):
    """As a roll-out does it on each node, each command twice."""
    key = run("keygen").stdout
    new = fingerprint(key.strip())
    for command, order in ((["--import"], [OLD, NEXT, new]), (["--first", new], [new, OLD, NEXT]),
                           (["--remove", OLD], [new, NEXT])):
        for again in False, True:
            r = run("keygen", *command, path, input=key if "--import" in command else "")
            assert r.returncode == (4 if again and "--remove" in command else 0)
            assert shown(path) == order


@pytest.mark.parametrize("option", ["--first", "--remove"])
def test_no_such_key(path, option):
    text = path.read_text()
    r = kvtctl("keygen", option, "0123456789abcdef", path)
    assert r.returncode == 4 and r.stdout == ""
    assert f"{path}: has no key 0123456789abcdef (--show says which it has)" in one_line(r.stderr)
    for bad in "0123456789abcde", "0123456789abcdef0", "0123456789abcdeg", "":
        r = kvtctl("keygen", option, bad, path)
        assert r.returncode == 2 and "is no fingerprint" in one_line(r.stderr)
    assert path.read_text() == text


ALL = [["--show"], ["--add"], ["--import"], ["--first", OLD], ["--remove", OLD]]


@pytest.mark.parametrize("option", ALL, ids=lambda o: o[0])
def test_refused_files(path, option):
    """The same as the daemon refuses."""
    def refused(*says):
        r = run("keygen", *option, path, input="ee" * 32)
        assert r.returncode == 1 and r.stdout == ""
        for text in says:
            assert text in one_line(r.stderr)
    text = path.read_text()
    path.chmod(0o640)
    refused(f"{path}: mode 0640: others can read it (chmod 600 {path})")
    path.chmod(0o600)
    path.write_text("ab" * 32 + "\n" + "ab" * 32)
    refused(f"{path}:2: the key of line 1 once more")
    path.write_text("secret\n")
    refused(f"{path}:1: a key is 64 hexadecimal digits, these are 6 characters")
    path.write_text("# nothing\n")
    refused(f"{path}: has no key")
    path.write_bytes(b"#" + bytes(1) + b"\n" + text.encode())
    refused(f"{path}: has a zero byte")
    path.write_text("#" * 70000)
    refused(f"{path}: has 70000 bytes, at most 65536 are read")
    path.unlink()
    refused(f"{path}: No such file or directory")
    path.mkdir()
    refused(f"{path}: is no regular file")
    assert [p.name for p in path.parent.iterdir()] == ["keys"]
    r = run("keygen", *option)
    assert r.returncode == 2 and "needs a FILE" in one_line(r.stderr)


def test_too_many(path):
    path.write_text("".join(f"{i:064x}\n" for i in range(16)))
    text = path.read_text()
    r = kvtctl("keygen", "--add", path)
    assert r.returncode == 1 and f"{path}:17: more than 16 keys" in one_line(r.stderr)
    path.write_text(text + "#" * (65536 - len(text)))
    assert kvtctl("keygen", "--first", fingerprint(f"{5:064x}"), path).returncode == 1
    assert [p.name for p in path.parent.iterdir()] == ["keys"]


def test_keeps_owner_mode_and_link(path, folder):
    real = folder / "real"
    real.mkdir()
    path.rename(real / "keys")
    path.symlink_to("real/keys")
    if os.geteuid() == 0:
        os.chown(real / "keys", 65534, 65533)
    (real / "keys").chmod(0o400)
    before = (real / "keys").stat()
    assert kvtctl("keygen", "--add", path).returncode == 0
    after = (real / "keys").stat()
    assert path.is_symlink() and len(shown(path)) == 3
    assert [after.st_uid, after.st_gid, after.st_mode] == \
        [before.st_uid, before.st_gid, before.st_mode]
    assert after.st_ino != before.st_ino


def test_one_at_a_time(path):
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        r = kvtctl("keygen", "--add", path)
    finally:
        os.close(fd)
    assert r.returncode == 1 and "another kvtctl is at work" in one_line(r.stderr)
    assert shown(path) == [OLD, NEXT]


def test_options():
    r = kvtctl("keygen", "--add", "--show", "x")
    assert r.returncode == 2 and "--add or --show, not both" in one_line(r.stderr)
    r = kvtctl("status", "--add")
    assert r.returncode == 2 and "--add is an option of keygen" in one_line(r.stderr)
    r = kvtctl("keygen", "a", "b")
    assert r.returncode == 2 and "kvtctl keygen [FILE]" in one_line(r.stderr)
    r = kvtctl("keygen", "-b", "a")
    assert r.returncode == 2 and "does not take the option -b" in one_line(r.stderr)
