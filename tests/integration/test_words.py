# SPDX-License-Identifier: Apache-2.0
"""The manual and the documents say what the programs, the tables and the header say."""
import os
import pathlib
import re
import subprocess

import pytest

from certs import ca, cluster_key
from wire import SLOW

pytestmark = pytest.mark.plain

BUILD = pathlib.Path(os.environ["KVT_BUILD"])
SOURCE = pathlib.Path(__file__).resolve().parents[2]
DOCUMENTS = ["README.md", "HACKING.md", "NEWS", "doc/design.md", "doc/grants.md",
             "doc/security.md"]


def prints(program, *args):
    return subprocess.run([BUILD / program, *args], check=True, capture_output=True, text=True,
                          timeout=10 * SLOW).stdout


def page(name):
    return (SOURCE / "man" / name).read_text()


def plain(mdoc):
    """A page's words without its macros."""
    text = re.sub(r"^\.\\\".*$", "", mdoc, flags=re.M)
    text = re.sub(r"\\&|\\ ", "", text.replace(r"\-", "-"))
    return " ".join(re.sub(r"^\.(\w\w) ?", "", text, flags=re.M).split())


# ---------------------------------------------------------------- kvtd.conf(5)

def help_config():
    """{(section, key): (default, reloadable, help)} as kvtd --help-config prints it."""
    keys, section, said = {}, "", None
    for line in prints("kvtd", "--help-config").splitlines():
        word = line.strip()
        if word.endswith(" {"):
            section = word[:-2]
        elif word == "}":
            section = ""
        elif said is None and word.startswith("# "):
            said = word[2:]
        elif said is not None:
            key, _, default = word.lstrip("#").partition(" = ")
            restart = said.endswith(" (needs a restart)")
            if word.startswith("#"):  # the node's own name: not the same everywhere
                assert default.strip('"')
                default = ""
            keys[section, key.rstrip(" =")] = (default.strip('"').replace("{}", ""), not restart,
                                               said.removesuffix(" (needs a restart)"))
            said = None
    return keys


def conf_page():
    """The same as kvtd.conf(5) has it."""
    keys, section = {}, None
    body = page("kvtd.conf.5").split(".Sh KEYS\n")[1].split(".Sh FILES\n")[0]
    for block in re.split(r"^(?=\.Ss |\.It )", body, flags=re.M):
        if block.startswith(".Ss "):
            section = block.split("\n")[0][4:].replace("Top level", "")
        elif block.startswith(".It "):
            key = re.match(r"\.It Ic (\w+) Pq (text|list|bool|level|time|size|count|word)\n", block)
            assert key, block
            said = re.match(r"[^\n]*\n((?:[^.\n][^\n]*\n)*)", block)[1]
            end = re.search(r"^Default:(?: none,|\n\.Ql ([^\n]*) ,\n) ?(reloadable|needs a restart)"
                            r"\.$", block, re.M)
            assert end, f"{key[1]}: its last line is not: Default: ..., reloadable."
            keys[section, key[1]] = (end[1] or "", end[2] == "reloadable",
                                     " ".join(said.split()).rstrip("."))
    return keys


def test_conf_keys():
    want, got = help_config(), conf_page()
    want.pop(("", "fault"), None)  # of test builds only; the page says so in words
    assert len(want) > 40
    assert sorted(got) == sorted(want)
    for key, (default, reloadable, said) in want.items():
        assert got[key][:2] == (default, reloadable), key
        assert got[key][2].lower() == said.lower(), key


def test_help_config_is_a_config(tmp_path):
    file = tmp_path / "kvtd.conf"
    file.write_text(prints("kvtd", "--help-config"))
    prints("kvtd", "--check-config", file)


def config_examples():
    for name in ("kvtd.conf.5", "kvtd.8"):
        for i, text in enumerate(re.findall(r"\.Bd -literal[^\n]*\n(.*?)\.Ed", page(name), re.S)):
            if " = " in text:
                yield pytest.param(text, id=f"{name}-{i}")
    for i, text in enumerate(re.findall(r"^```\n(.*?)^```", (SOURCE / "README.md").read_text(),
                                        re.S | re.M)):
        if " = " in text:
            yield pytest.param(text, id=f"README.md-{i}")


@pytest.mark.parametrize("text", config_examples())
def test_config_examples(tmp_path, text):
    """With the files of trust that they name."""
    if "cluster.key" in text:
        cluster_key(tmp_path / "cluster.key")
    if "cert_key" in text:
        authority = ca(tmp_path)
        mine = authority.cert("node-a")
        for at, to in ((authority.file, "ca.pem"), (mine.cert, "node-a.pem"),
                       (mine.key, "node-a.key")):
            at.rename(tmp_path / to)
    file = tmp_path / "kvtd.conf"
    file.write_text(text.replace("/etc/kvtd/", f"{tmp_path}/"))
    prints("kvtd", "--check-config", file)


# ---------------------------------------------------------------- command lines

@pytest.mark.parametrize("program, name", [("kvtd", "kvtd.8"), ("kvtctl", "kvtctl.1"),
                                           ("kvtbench", "kvtbench.1")])
def test_options(program, name):
    options = set(re.findall(r"^  (?:-\w,? | {3,4})? *--([a-z-]+)", prints(program, "--help"),
                             re.M)) - {"fault"}
    text = page(name).replace(r"\-", "-")
    assert len(options) > 5
    in_page = set(re.findall(r"Fl (?:Fl |-)([a-z][a-z-]+)", text))
    assert sorted(options - in_page) == [], f"{name} lacks options"
    assert sorted(in_page - options - {"enable-fault-injection"}) == [], f"{name} has too many"


def test_kvtctl_columns():
    text = plain(page("kvtctl.1"))
    objects = re.findall(r"^  (client|region|cache|grant|transfer|peer) ", prints("kvtctl", "--help"),
                         re.M)
    assert len(objects) == 6
    for name in objects:
        columns = re.findall(r"^  ([A-Z]+) +(\w+) ", prints("kvtctl", "help", name), re.M)
        assert len(columns) > 5
        for heading, key in columns:
            assert re.search(rf"\b{heading}\b", text), f"{name}: no column {heading}"
            assert re.search(rf"\b{key}\b", text), f"{name}: no key {key}"


# ---------------------------------------------------------------- libkvt(3)

def header():
    text = re.sub(r"/\*.*?\*/", " ", (SOURCE / "client" / "kvt.h").read_text(), flags=re.S)
    return re.sub(r"^#.*$", "", text, flags=re.M)


def squeeze(text):
    return re.sub(r"\s*([*(),])\s*", r"\1", " ".join(text.split()))


def test_functions():
    want = {squeeze(m) for m in re.findall(r"^[a-z][\w *]*?\bkvt_\w+\([^;{}]*?\);", header(),
                                           re.M | re.S)}
    got = set()
    synopsis = page("libkvt.3").split(".Sh SYNOPSIS\n")[1].split(".Sh ")[0]
    for kind, name, args in re.findall(r'^\.Ft "?([^"\n]*)"?\n\.Fn (\w+) ?(.*)$', synopsis, re.M):
        args = ",".join(quoted or word for quoted, word in
                        re.findall(r'"([^"]*)"|(\S+)', args))
        got.add(squeeze(f"{kind} {name}({args});"))
    assert len(want) > 30
    assert sorted(got) == sorted(want)


def test_constants():
    text = page("libkvt.3")
    for name in re.findall(r"^\s*(KVT_\w+)\s*(?:=|,)", header(), re.M):
        if name in ("KVT_STATUS_COUNT", "KVT_EVENT_NONE", "KVT_ACCESS_ALL"):
            continue
        assert re.search(rf"\b{name}\b", text), name


def test_statuses():
    numbers = dict(re.findall(r"KVT_(\w+) = (\d+),", header().split("enum kvt_status {")[1]
                              .split("}")[0]))
    in_page = re.findall(r"^\.It Dv KVT_(\w+)\n(\d+)(, retry)?: (.*)$", page("libkvt.3"), re.M)
    assert {n: i for n, i, _, _ in in_page} == numbers
    table = dict((n, (text, ", retry" if retry == "1" else "")) for n, text, retry in
                 re.findall(r'\[KVT_(\w+)\] = \{\s*"\w+",\s*"([^"]*)",\s*(\d)\s*\}',
                            (SOURCE / "common" / "status.c").read_text()))
    assert {n: (text, retry) for n, _, retry, text in in_page} == table


# ---------------------------------------------------------------- documents

def test_excerpt():
    """What README and libkvt(3) show of a program is in the program."""
    lines = [line.strip() for line in (SOURCE / "examples" / "hello.c").read_text().splitlines()]
    readme = re.findall(r"^```c\n(.*?)^```", (SOURCE / "README.md").read_text(), re.S | re.M)
    manual = re.findall(r"\.Bd -literal\n(.*?)\.Ed", page("libkvt.3"), re.S)
    assert len(readme) == 1 and len(manual) == 1
    for text in readme[0], manual[0].replace(r"\e", "\\"):
        shown = [line.strip() for line in text.splitlines()]
        at = lines.index(shown[0])
        assert lines[at:at + len(shown)] == shown


def test_hello(two_daemons):
    a, b = two_daemons
    for near, far, path in (a, a, "local"), (a, b, "tcp"):
        assert prints("examples/hello", near.client_socket, far.client_socket) == (
            f"block 2: hello from block 5 (4096 bytes, path {path})\ngrant: done\n")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_files_exist(name):
    """Links, and files that are named with their folder."""
    text = (SOURCE / name).read_text()
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    for link in links:
        assert (SOURCE / name).parent.joinpath(link).exists(), f"{name}: {link}"
    text = re.sub(r"https?:\S+|\S*(?:foo|NAME)\S*", "", text)
    for path in re.findall(r"\b(?:client|common|daemon|doc|examples|man|proto|scripts|tests)"
                           r"/[\w./*-]*[\w/]", text):
        assert list(SOURCE.glob(path)) or list(SOURCE.glob(path + ".c")), f"{name}: {path}"
    for file in re.findall(r"(?<![\w/.-])[\w*]+\.(?:c|h|tbl|proto|mk)\b", text):
        assert (any(SOURCE.glob(f"*/{file}")) or any(SOURCE.glob(f"*/*/{file}")) or
                file in ("config.h", "prog.c")), f"{name}: {file}"


@pytest.mark.parametrize("name", DOCUMENTS + ["man/kvtd.8", "man/libkvt.3", "man/kvtctl.1"])
def test_keys_exist(name):
    """Keys that are named with their section."""
    keys = help_config()
    sections = "|".join({section for section, _ in keys if section})
    text = (SOURCE / name).read_text()
    for section, key in re.findall(rf"(?<![\w/])({sections})\.(?!md\b)([a-z_]+)\b", text):
        assert (section, key) in keys, f"{name}: {section}.{key}"
