"""Declares the flags that name a rollback record and what proves it, and reads what they name."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gateway.command import UsageError

__all__ = ["add_evidence_flags", "add_record_flags", "options_of", "record_options"]


def add_record_flags(parser: Any, said: str) -> None:
    """Declare ``--manifest``, which ``said`` explains, and the flags of what proves the record."""
    parser.add_argument("--manifest", metavar="FILE", help=said)
    add_evidence_flags(parser)


def add_evidence_flags(parser: Any) -> None:
    """Declare ``--launch-record`` and ``--accept-unverified``."""
    parser.add_argument(
        "--launch-record",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a start-up log, 'kubectl get pod -o json' or the like; may be repeated",
    )
    parser.add_argument(
        "--accept-unverified",
        action="append",
        default=[],
        metavar="FIELD",
        help="a field of the record that nothing verifies (audited; may be repeated)",
    )


def record_options(args: argparse.Namespace) -> dict[str, Any]:
    """What a change of routes sends of the record it rests on; {} where no flag names one.

    Raises:
        UsageError: a file can't be read, or there is evidence and no record.
    """
    if args.manifest is not None:
        try:
            return options_of(args.manifest, args)
        except ValueError as error:
            raise UsageError(f"--manifest {args.manifest}: {error}") from error
    for flag in ("launch_record", "accept_unverified"):
        if getattr(args, flag):
            raise UsageError(f"--{flag.replace('_', '-')}: is of --manifest")
    return {}


def options_of(manifest: str, args: argparse.Namespace) -> dict[str, Any]:
    """A record by its file's content, or by its digest; and the evidence.

    Raises:
        RecordError: a file does not hold what it should.
    """
    # Only where a record is named: what a record is made of takes long to load.
    from gateway.manifest import document  # noqa: PLC0415
    from gateway.manifest_files import read_launch, read_sealed  # noqa: PLC0415

    is_file = Path(manifest).exists()
    return {
        "manifest": document(read_sealed(Path(manifest))) if is_file else manifest,
        "accept_unverified": args.accept_unverified,
        "launch_record": [asdict(read_launch(path)) for path in args.launch_record],
    }
