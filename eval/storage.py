"""Folders in object storage, as paths: `s3://bucket/pools/qwen` beside `pools/qwen`.

pyarrow brings S3 (with the environment variables of AWS: credentials, AWS_REGION, AWS_ENDPOINT_URL for servers that
speak S3), Google's (gs) and Azure's (abfs) storage, fsspec one in memory. Other schemes are refused: a pool needs
objects that are complete or absent, and that are replaced at once. Folders are only names there, and what there is not
is a lock. Whoever writes says so, and one process at a time is the user's business.
"""

import os
import stat
from collections.abc import Generator
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path, PosixPath
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

from offleash.eval.errors import ConfigError, first_line

SCHEMES = {
    "s3": "s3://bucket/folder",
    "gs": "gs://bucket/folder",
    "gcs": "gcs://bucket/folder",
    "abfs": "abfs://container@account.dfs.core.windows.net/folder",
    "abfss": "abfss://container@account.dfs.core.windows.net/folder",
    "memory": "memory://name/folder",
}
"""What can hold a pool, and how it is written."""


def path_at(where: str | Path) -> Path:
    """A path of this machine, or one of object storage for what starts with `scheme://`: not yet looked at."""
    if isinstance(where, StoragePath):
        return where
    text = str(where)
    if text.startswith("file:///"):
        return Path(unquote(text.removeprefix("file://")))
    if "://" not in text:
        return Path(where)
    if len((path := StoragePath(text)).parts) < 2:
        raise ConfigError(f"{where} names no bucket: give scheme://bucket/folder")
    return path


def is_stored(path: Path) -> bool:
    """Whether a path is one of object storage."""
    return isinstance(path, StoragePath)


def appears_complete(path: Path) -> bool:
    """Whether what is written to a path appears at once. To Azure pyarrow writes an empty object first."""
    return isinstance(path, StoragePath) and not path.parts[0].startswith("abfs")


class StoragePath(PosixPath):
    """A path whose files are objects: what a pool uses of `pathlib.Path`, and nothing else.

    The text is all there is to it, so that what is derived from it, or sent to another machine, is one too.
    """

    def __str__(self) -> str:
        scheme, *rest = self.parts
        return f"{scheme}//{'/'.join(rest)}"

    __fspath__ = __str__  # passed on as a local path it names no file

    def __repr__(self) -> str:
        return f"StoragePath({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return StoragePath, (str(self),)

    @property
    def system(self) -> Any:
        """The pyarrow filesystem. Raises ConfigError for a place that cannot hold a pool."""
        return self._place()[0]

    @property
    def key(self) -> str:
        """The name of the object within the filesystem."""
        return "/".join(part for part in (self._place()[1], *self.parts[2:]) if part)

    def _place(self) -> tuple[Any, str]:
        scheme, authority = self.parts[:2]
        if "?" in str(self):
            raise ConfigError(f"{scheme}// takes no settings behind a question mark: set environment variables")
        return _system(scheme.rstrip(":"), authority)

    def absolute(self) -> "StoragePath":
        return self

    def resolve(self, strict: bool = False) -> "StoragePath":
        return self

    def expanduser(self) -> "StoragePath":
        return self

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Nothing: there are no folders without files."""

    def exists(self, **_: Any) -> bool:
        return self._info().type.name != "NotFound"

    def is_file(self, **_: Any) -> bool:
        return bool(self._info().is_file)

    def is_dir(self, **_: Any) -> bool:
        return self._info().type.name == "Directory"

    def stat(self, **_: Any) -> Any:
        info = self._info()
        if info.type.name == "NotFound":
            raise FileNotFoundError(2, "No such object", str(self))
        changed = info.mtime_ns or 0
        kind = stat.S_IFREG if info.is_file else stat.S_IFDIR
        return SimpleNamespace(
            st_size=info.size or 0, st_mtime=changed / 1e9, st_mtime_ns=changed, st_ino=0, st_mode=kind | 0o644
        )

    def iterdir(self) -> Generator["StoragePath", None, None]:
        yield from self._below(recursive=False)

    def glob(self, pattern: str, **_: Any) -> Generator["StoragePath", None, None]:
        """Of one level, or of as many as the pattern has."""
        depth = len(Path(pattern).parts)
        for path in self._below(recursive=depth > 1):
            name = "/".join(path.parts[len(self.parts) :])
            if len(path.parts) == len(self.parts) + depth and fnmatch(name, pattern):
                yield path

    def rglob(self, pattern: str, **_: Any) -> Generator["StoragePath", None, None]:
        yield from (path for path in self._below(recursive=True) if fnmatch(path.name, pattern))

    def read_bytes(self) -> bytes:
        with self.system.open_input_stream(self.key) as file:
            return bytes(file.read())

    def read_text(self, encoding: str | None = None, errors: str | None = None, **_: Any) -> str:
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")

    def write_bytes(self, data: Any) -> int:
        with self.system.open_output_stream(self.key) as file:
            file.write(data)
        return len(data)

    def unlink(self, missing_ok: bool = False) -> None:
        if self.exists():
            self.system.delete_file(self.key)
        elif not missing_ok:
            raise FileNotFoundError(2, "No such object", str(self))

    def replace(self, target: Any) -> "StoragePath":
        """By a copy within the storage, or a rename where it has one."""
        try:
            self.system.move(self.key, target.key)
        except NotImplementedError as error:  # Azure without a hierarchical namespace
            raise OSError(first_line(error)) from error
        return StoragePath(str(target))

    def _info(self) -> Any:
        return self.system.get_file_info(self.key)

    def _below(self, recursive: bool) -> list["StoragePath"]:
        from pyarrow.fs import FileSelector

        key = self.key
        found = self.system.get_file_info(FileSelector(key, recursive=recursive, allow_not_found=True))
        return sorted(self / info.path.strip("/").removeprefix(key).strip("/") for info in found)


@lru_cache(maxsize=64)
def _system(scheme: str, authority: str) -> tuple[Any, str]:
    """The pyarrow filesystem of `scheme://authority`, and what the names of its objects begin with."""
    if scheme not in SCHEMES:
        raise ConfigError(
            f"{scheme}://{authority} cannot hold a pool: give a folder, or one of {', '.join(SCHEMES)}://"
        )
    if ":" in authority.rpartition("@")[0]:
        raise ConfigError(f"{scheme}:// has a password, which would be shown and stored: set environment variables")
    from pyarrow.fs import FileSystem, FSSpecHandler, PyFileSystem, S3FileSystem

    url = f"{scheme}://{authority}"
    server = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    try:
        if scheme == "s3" and server:
            region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
            return S3FileSystem(endpoint_override=server, region=region), authority
        if scheme == "memory":
            import fsspec

            system, root = fsspec.core.url_to_fs(url)
            return PyFileSystem(FSSpecHandler(system)), root.strip("/")
        system, root = FileSystem.from_uri(url)
        return system, root.strip("/")
    # A package that is not there, a bucket that cannot be found, an account without a name.
    except (ValueError, ImportError, OSError) as error:
        raise ConfigError(f"{url} cannot be used as {SCHEMES[scheme]}: {first_line(error)}") from error
