"""Plain text out of folders, Debian packages, wheels and source archives."""

from __future__ import annotations

import gzip
import html
import re
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

SUFFIXES = (".py", ".txt", ".rst", ".md", ".html", ".htm", ".xhtml", ".page", ".xml", ".sgml")
_MANUAL = re.compile(r"/man/man\d/")
_HIDDEN = re.compile(r"<(script|style|head)\b.*?</\1\s*>|<!--.*?-->", re.DOTALL | re.IGNORECASE)
_BREAK = re.compile(r"</?(p|div|br|li|tr|h\d|pre|table|ul|ol|dl|dt|dd)\b[^>]*>", re.IGNORECASE)
_TAG = re.compile(r"</?[a-zA-Z!?][^>]*>")
_SPACES = re.compile(r"[ \t]+\n")
_LINES = re.compile(r"\n{3,}")
# Larger files are tables and generated code; smaller ones hold nothing.
MOST_BYTES = 2_000_000
LEAST_BYTES = 200


def documents(source: Path, most_bytes: int) -> Iterator[str]:
    """Texts of one source (a folder, .deb, .whl, .zip or .tar.gz) until together they have `most_bytes` characters."""
    held = 0
    for name, data in _files(source):
        text = _text(name, data)
        if len(text) < LEAST_BYTES:
            continue
        yield text
        held += len(text)
        if held >= most_bytes:
            return


def wanted(name: str, size: int) -> bool:
    """Whether a file holds text that people read."""
    plain = name.removesuffix(".gz")
    return LEAST_BYTES <= size <= MOST_BYTES and (plain.endswith(SUFFIXES) or bool(_MANUAL.search(name)))


def html_text(source: str) -> str:
    """The text of a page, one block a line."""
    text = _TAG.sub("", _BREAK.sub("\n", _HIDDEN.sub("", source)))
    return _LINES.sub("\n\n", _SPACES.sub("\n", html.unescape(text))).strip()


def _text(name: str, data: bytes) -> str:
    if name.endswith(".gz"):
        data, name = gzip.decompress(data), name.removesuffix(".gz")
    text = data.decode("utf-8", errors="replace")
    markup = name.endswith((".html", ".htm", ".xhtml", ".page", ".xml", ".sgml"))
    return html_text(text) if markup else text


def _files(source: Path) -> Iterator[tuple[str, bytes]]:
    if source.is_dir():
        for path in sorted(source.rglob("*")):
            if path.is_file() and not path.is_symlink() and wanted(str(path), path.stat().st_size):
                yield str(path), path.read_bytes()
    elif source.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(source) as archive:
            for entry in archive.infolist():
                if wanted(entry.filename, entry.file_size):
                    yield entry.filename, archive.read(entry)
    elif source.suffix == ".deb":
        command = ["dpkg-deb", "--fsys-tarfile", str(source)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            if process.stdout is not None:
                with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
                    yield from _members(archive)
            process.kill()
    else:
        with tarfile.open(source, mode="r|*") as archive:
            yield from _members(archive)


def _members(archive: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    for member in archive:
        if member.isfile() and wanted(member.name, member.size):
            file = archive.extractfile(member)
            if file is not None:
                yield member.name, file.read()
