"""Keeps what must survive a crash: route tables, the audit trail, records of other parts.

One SQLite file in the state directory. A change is one transaction, so a crash at any statement
leaves the old or the new table, whole; it is on the disk (``synchronous = FULL``) before the caller
is told. The directory is locked: a second process is refused. What can't be written is a
``StateError``; what was written stays readable. A file that was emptied, or that is gone while its
journal is there, was lost: it is not begun anew. All calls block: make them in a thread.
"""

import contextlib
import fcntl
import os
import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson

from gateway.audit import FIRST_PARENT, AuditEntry, Note, broken_at, linked

__all__ = ["Record", "Revision", "State", "StateError"]

FILE = "state.sqlite"
# Kept between changes, and when the file is closed: it tells that there was a file.
JOURNAL = f"{FILE}-journal"
VERSION = 1
SALT_BYTES = 32
_SCHEMA = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT",
    "CREATE TABLE revisions (revision INTEGER PRIMARY KEY, body TEXT NOT NULL) STRICT",
    "CREATE TABLE audit (n INTEGER PRIMARY KEY, body TEXT NOT NULL) STRICT",
    "CREATE TABLE records (kind TEXT NOT NULL, id TEXT NOT NULL, body TEXT NOT NULL,"
    " PRIMARY KEY (kind, id)) STRICT",
)
_WORDS = {
    "SQLITE_FULL": "the disk is full",
    "SQLITE_CORRUPT": "the file is damaged",
    "SQLITE_NOTADB": "the file is damaged: it is no SQLite database",
    "SQLITE_READONLY_DBMOVED": "the file was moved, removed or replaced: put it back, or restart",
    "SQLITE_READONLY": "is read-only",
    "SQLITE_CANTOPEN": "can't be opened or created",
}

# A part's own record: its kind, its id, and JSON to keep, or None to forget it.
Record = tuple[str, str, Mapping[str, Any] | None]


_Row = TypeVar("_Row")


class StateError(Exception):
    """The state can't be read or written; the message begins with its path."""


@dataclass(frozen=True, slots=True)
class Revision:
    """One committed route table, and how it came.

    ``configuration`` is the digest of the configured routes it rests on.
    """

    revision: int
    at: str
    who: str
    action: str
    why: str
    from_revision: int | None
    configuration: str
    table: Mapping[str, Any]


class State:
    """The state of one gateway. ``fault`` says why nothing could be written at last, if so.

    Args:
        directory: where it is kept, made if need be; None: in memory.

    Raises:
        StateError: another process uses the directory, or the file was lost, is damaged or of
            another version.
    """

    def __init__(self, directory: Path | None) -> None:
        self._path = Path(":memory:") if directory is None else directory / FILE
        self.kept = directory is not None
        self.fault: str | None = None
        self._aside: str | None = None  # why memory is used in place of a file
        self._guard = threading.Lock()
        self._lock_fd: int | None = None
        if directory is not None:
            self._make(directory)
        try:
            self.connection = self._open()
        except StateError:
            self._unlock()
            raise
        try:
            with self._named():
                self._prepare()
            self.salt = self._meta("salt")
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return str(self._path)

    def close(self) -> None:
        """Close the file and free the directory."""
        self.connection.close()
        self._unlock()

    # -- route tables and audit ------------------------------------------------------------

    def commit(
        self, at: str, note: Note, revision: Revision | None = None, records: Sequence[Record] = ()
    ) -> AuditEntry:
        """Write a change down, whole; returns its entry of the audit trail.

        Raises:
            StateError: it can't be written; nothing was.
        """
        with self._writing() as execute:
            number, parent = self._head()
            entry = linked(note, number + 1, at, parent)
            execute("INSERT INTO audit VALUES (?, ?)", (entry.n, _text(asdict(entry))))
            execute("UPDATE meta SET value = ? WHERE key = 'head'", (_head(entry.n, entry.digest),))
            if revision is not None:
                row = (revision.revision, _text(asdict(revision)))
                execute("INSERT INTO revisions VALUES (?, ?)", row)
            for record in records:
                _write(execute, record)
        return entry

    def revisions(self, limit: int) -> list[Revision]:
        """The last tables, newest first."""
        rows = self._rows("SELECT body FROM revisions ORDER BY revision DESC LIMIT ?", limit)
        return [self._read(Revision, body) for (body,) in rows]

    def revision(self, number: int) -> Revision | None:
        """One table."""
        rows = self._rows("SELECT body FROM revisions WHERE revision = ?", number)
        return self._read(Revision, rows[0][0]) if rows else None

    def audit(self, limit: int) -> tuple[list[AuditEntry], int | None]:
        """The last entries, newest first, and which of them was tampered with first.

        One that can't be read is not among them, and was tampered with.
        """
        with self._guard, self._named():
            head = self._head()
            first = max(0, head[0] - limit)
            # One more than there should be: it would not follow.
            last = "SELECT body FROM audit WHERE n > ? ORDER BY n LIMIT ?"
            rows = self.connection.execute(last, (first, limit + 1)).fetchall()
        entries = [_entry(body) for (body,) in rows]
        # What stands before them is taken on trust, where anything does.
        broken = broken_at(_readable(entries), head, (first, None if first else FIRST_PARENT))
        return [entry for entry in reversed(entries) if entry is not None], broken

    def broken_at(self) -> int | None:
        """The first entry of the whole audit trail that was tampered with; reads all of it."""
        with self._guard, self._named():
            rows = self.connection.execute("SELECT body FROM audit ORDER BY n")
            return broken_at(_readable(_entry(body) for (body,) in rows), self._head())

    # -- records of other parts ------------------------------------------------------------

    def put(self, kind: str, key: str, body: Mapping[str, Any]) -> None:
        """Keep a record, in place of the one of this kind and id; raises ``StateError``."""
        with self._writing() as execute:
            _write(execute, (kind, key, body))

    def delete(self, kind: str, key: str) -> None:
        """Forget a record, if there is one; raises ``StateError``."""
        with self._writing() as execute:
            _write(execute, (kind, key, None))

    def get_all(self, kind: str) -> dict[str, dict[str, Any]]:
        """All records of a kind by id, in order of their ids."""
        rows = self._rows("SELECT id, body FROM records WHERE kind = ? ORDER BY id", kind)
        return {key: self._read(dict, body) for key, body in rows}

    # -- the file --------------------------------------------------------------------------

    def _make(self, directory: Path) -> None:
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._unlock()
            raise StateError(f"{directory}: another gateway uses this state directory") from None
        except OSError as error:
            self._unlock()
            raise StateError(f"{directory}: {error.strerror}") from error

    def _unlock(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def _open(self) -> sqlite3.Connection:
        """Open to write; to read alone where that is all that can be done."""
        if not self.kept:
            return _connect(":memory:")
        folder, writable = self._path.parent, os.access(self._path.parent, os.W_OK)
        if not self._path.exists():
            self._require_new(folder)
        if writable and (not self._path.exists() or os.access(self._path, os.W_OK)):
            with self._named():
                if not self._path.exists():
                    self._begin(folder / f"{FILE}.new")
                return _connect(self._path.absolute().as_uri() + "?mode=rw")
        self.fault = f"{folder}: is read-only"
        if not self._path.exists():
            self._aside = self.fault
            return _connect(":memory:")
        with self._named():
            return _connect(self._path.absolute().as_uri() + "?mode=ro")

    def _require_new(self, folder: Path) -> None:
        if (folder / JOURNAL).exists():
            raise StateError(
                f"{self._path}: is gone, but {JOURNAL} is there, so there was one: put a copy "
                f"back, or remove {JOURNAL} too to begin without routes, audit and records"
            )

    def _begin(self, path: Path) -> None:
        """Make the file under another name: under its own it is never empty."""
        for left in (path, path.with_name(f"{path.name}-journal")):
            left.unlink(missing_ok=True)
        path.touch(mode=0o600)
        with contextlib.closing(_connect(path.absolute().as_uri() + "?mode=rw")) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            _create(connection)
        path.rename(self._path)
        if self._lock_fd is not None:
            os.fsync(self._lock_fd)  # of the directory: the name is on the disk, too

    def _prepare(self) -> None:
        version = self.connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in {0, VERSION}:
            raise StateError(f"{self._path}: is of version {version}, and this reads {VERSION}")
        if self.fault is None:
            self.connection.execute("PRAGMA journal_mode = TRUNCATE")
            self.connection.execute("PRAGMA synchronous = FULL")
        found = self.connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise StateError(f"{self._path}: the file is damaged: {found}")
        if version == 0 and self._path.exists():
            raise StateError(
                f"{self._path}: is empty, and was not when it was made: put a copy back, or remove "
                f"it and {JOURNAL} to begin without routes, audit and records"
            )
        if version == 0:  # in memory
            _create(self.connection)

    def _meta(self, key: str) -> bytes:
        rows = self._rows("SELECT value FROM meta WHERE key = ?", key)
        if not rows:
            raise StateError(f"{self._path}: the file is damaged: it has no {key}")
        return bytes(rows[0][0])

    def _head(self) -> tuple[int, str]:
        """Number and digest of the last entry of the audit trail."""
        row = self.connection.execute("SELECT value FROM meta WHERE key = 'head'").fetchone()
        try:
            number, digest = orjson.loads(row[0])
        except (TypeError, ValueError) as error:
            raise StateError(f"{self._path}: the file is damaged: it has no head") from error
        return number, digest

    def _read(self, shape: type[_Row], body: str) -> _Row:
        try:
            return shape(**orjson.loads(body))
        except (ValueError, TypeError) as error:
            raise StateError(f"{self._path}: the file is damaged: {error}") from error

    def _rows(self, statement: str, *values: object) -> list[Any]:
        with self._guard, self._named():
            return self.connection.execute(statement, values).fetchall()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Callable[..., Any]]:
        with self._guard:
            if self._aside is not None:
                raise StateError(self._aside)
            try:
                with self._named(), _transaction(self.connection) as execute:
                    yield execute
            except StateError as error:
                self.fault = str(error)
                raise
            self.fault = None

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", "")
            words = next((w for key, w in _WORDS.items() if name.startswith(key)), str(error))
            raise StateError(f"{self._path}: {words}") from error
        except OSError as error:
            raise StateError(f"{self._path}: {error.strerror}") from error


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[Callable[..., Any]]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection.execute
        connection.execute("COMMIT")
    except BaseException:
        # Some errors have ended it already.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _create(connection: sqlite3.Connection) -> None:
    with _transaction(connection) as execute:
        for statement in _SCHEMA:
            execute(statement)
        for key, value in (
            ("salt", secrets.token_bytes(SALT_BYTES)),
            ("head", _head(0, FIRST_PARENT)),
        ):
            execute("INSERT INTO meta VALUES (?, ?)", (key, value))
        execute(f"PRAGMA user_version = {VERSION}")


def _connect(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(
        uri, timeout=0.0, isolation_level=None, check_same_thread=False, uri=uri != ":memory:"
    )


def _write(execute: Callable[..., Any], record: Record) -> None:
    kind, key, body = record
    execute("DELETE FROM records WHERE kind = ? AND id = ?", (kind, key))
    if body is not None:
        execute("INSERT INTO records VALUES (?, ?, ?)", (kind, key, _text(body)))


def _entry(body: str) -> AuditEntry | None:
    try:
        return AuditEntry(**orjson.loads(body))
    except (ValueError, TypeError):
        return None


def _readable(entries: Iterable[AuditEntry | None]) -> Iterator[AuditEntry]:
    """The entries up to the first that can't be read."""
    for entry in entries:
        if entry is None:
            return
        yield entry


def _text(value: Mapping[str, Any]) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _head(number: int, digest: str) -> bytes:
    return orjson.dumps([number, digest])
