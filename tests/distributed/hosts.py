"""Several hosts on one machine: network namespaces with addresses and host names of their own.

A bridge in a namespace of its own joins them, so no packet and no setting is of this machine's own
network. Needs root, ``ip`` and ``unshare`` (Debian: iproute2, util-linux).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

from tests import patience
from tests.e2e import harness

#: What a host calls its end of the cable.
INTERFACE = "eth0"
PORT = 29500


def obstacle() -> str | None:
    """Return why there can be no hosts here, None where there can."""
    missing = [name for name in ("ip", "unshare") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} missing (apt-get install iproute2 util-linux)"
    name = f"llmb{os.getpid()}try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"no network namespace can be made here: {made.stderr.strip()}"
    try:
        there = "hostname x && mount --bind /dev/null /etc/hosts"
        command = ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", there]
        tried = subprocess.run(command, capture_output=True, text=True, check=False)
        link = ["ip", "-n", name, "link", "add", "br0", "type", "bridge"]
        tried = tried if tried.returncode else subprocess.run(link, capture_output=True, text=True)
        return f"no host can be made here: {tried.stderr.strip()}" if tried.returncode else None
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


class Host:
    """A network namespace; what is started there finds an address and a host name of its own."""

    def __init__(self, space: str, number: int, names: Path) -> None:
        self.space, self.number, self._names = space, number, names
        self.name = f"host{number}"
        self.address = f"10.77.0.{number + 1}"

    def command(self, arguments: Sequence[str]) -> list[str]:
        # What is mounted in the namespace is seen there alone.
        named = f'hostname {self.name} && mount --bind {self._names} /etc/hosts && exec "$@"'
        shell = ["unshare", "--uts", "sh", "-c", named, "sh", *arguments]
        return ["ip", "netns", "exec", self.space, *shell]

    def cut_off(self) -> None:
        """Pull the cable: what is sent is lost, and nobody is told."""
        _ip("-n", self.space, "link", "set", INTERFACE, "down")


@contextmanager
def hosts(count: int, folder: Path) -> Iterator[list[Host]]:
    """Make ``count`` hosts that reach one another by name; nothing of them is left.

    A file in ``folder`` is what each has for /etc/hosts.
    """
    names, stem = folder / "hosts", f"llmb{os.getpid()}"
    with ExitStack() as stack:

        def space(name: str) -> str:
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "del", name)
            _ip("-n", name, "link", "set", "lo", "up")
            return name

        switch = space(f"{stem}sw")
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        made = [Host(space(f"{stem}h{number}"), number, names) for number in range(count)]
        known = [f"{host.address} {host.name}\n" for host in made]
        names.write_text("127.0.0.1 localhost\n" + "".join(known))
        for host in made:
            cable, place = f"port{host.number}", ("netns", host.space)
            _ip("-n", switch, "link", "add", cable, "type", "veth", "peer", INTERFACE, *place)
            _ip("-n", switch, "link", "set", cable, "master", "br0", "up")
            _ip("-n", host.space, "address", "add", f"{host.address}/24", "dev", INTERFACE)
            _ip("-n", host.space, "link", "set", INTERFACE, "up")
        yield made


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (arguments, done.stderr)


class Launched:
    """``torchrun -m llmb run`` on one host, and everything that it starts."""

    def __init__(self, host: Host, output: Path, command: Sequence[str], plugins: Sequence[Path]):
        output.mkdir(parents=True)
        self.host, self.output = host, output / "runs"
        self._stderr = output / "stderr"
        env = harness.environment(*plugins, GLOO_SOCKET_IFNAME=INTERFACE)
        arguments = [*command, f"--output-dir={self.output}"]
        with self._stderr.open("wb") as stderr:
            self.process = subprocess.Popen(
                host.command(arguments),
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )

    @property
    def stderr(self) -> str:
        return self._stderr.read_text(errors="replace")

    def wait(self) -> int:
        """Return the exit code when it has ended, as long as there is progress."""
        return patience.ended(self.process, output=self.output, said=self._said)

    def _said(self) -> bytes:
        return self._stderr.read_bytes()

    def family(self) -> list[psutil.Process]:
        """Return every process that was started here and is still there."""
        space = os.stat(f"/run/netns/{self.host.space}").st_ino
        return [p for p in psutil.process_iter() if _network_of(p) == space]


def _network_of(process: psutil.Process) -> int | None:
    try:
        return os.stat(f"/proc/{process.pid}/ns/net").st_ino
    except OSError:  # it has ended
        return None


@contextmanager
def torchrun(
    made: Sequence[Host],
    folder: Path,
    rendezvous: str,
    *arguments: str,
    plugins: Sequence[Path] = (),
) -> Iterator[list[Launched]]:
    """Start ``llmb run`` with one rank on each host; whatever is left at the end is killed."""
    first = made[0].address
    where = {
        "static": ("--master-addr", first, "--master-port", str(PORT)),
        "c10d": ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{first}:{PORT}"),
    }[rendezvous]
    launched = []
    try:
        for host in made:
            node = ("--nnodes", str(len(made)), "--node-rank", str(host.number))
            mine = ("--local-addr", host.address, "--max-restarts", "0")
            command = [sys.executable, "-m", "torch.distributed.run", *node, *where, *mine]
            command += ["--nproc-per-node", "1", "-m", "llmb", "run", *arguments]
            launched.append(Launched(host, folder / host.name, command, plugins))
        yield launched
    finally:
        for each in launched:
            for process in each.family():
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)
            each.process.wait()


def wait_until(condition: Callable[[], bool], launched: Sequence[Launched]) -> None:
    """Return when ``condition`` holds; fail where one of ``launched`` ends before."""

    def holds() -> bool:
        if condition():
            return True
        said = [each.stderr for each in launched]
        assert all(each.process.poll() is None for each in launched), said
        return False

    def said() -> bytes:
        return "\n".join(each.stderr for each in launched).encode()

    patience.until(holds, [each.process for each in launched], said=said)
