"""`hitide store up` with the real Mooncake: what it prints, what it listens on, and how it ends."""

import importlib
import os
import signal
import socket
import stat
import subprocess
import sys

import pytest

from mooncake_tools import ROOT, StoreUp, find_mooncake_python, listening, wait_until

sys.path.insert(0, os.path.join(ROOT, "python"))
servers = importlib.import_module("hitide.store.servers")

SEGMENT = ("--segment-gb", "0.0625")
LOOPBACK = "0100007F"
# A client that knows nothing but the variables.
CLIENT = """
import os
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert os.environ["MOONCAKE_GLOBAL_SEGMENT_SIZE"] == "0"
code = store.setup(os.environ["MOONCAKE_LOCAL_HOSTNAME"], "P2PHANDSHAKE", 0, 1 << 24,
                   os.environ["MOONCAKE_PROTOCOL"], "", os.environ["MOONCAKE_MASTER"])
assert code == 0, code
assert store.put("key", b"value" * 1000) == 0
assert store.get("key") == b"value" * 1000
if "MOONCAKE_CLIENT" in os.environ:
    thin = MooncakeDistributedStore()
    assert os.environ["MOONCAKE_STANDALONE_STORAGE"] == "1"
    assert thin.setup_dummy(0, 0, os.environ["MOONCAKE_CLIENT"]) == 0
    assert thin.is_exist("key") == 1
    thin.close()
store.close()
print("done", flush=True)
os._exit(0)
"""


@pytest.fixture(scope="module")
def python():
    return find_mooncake_python()


def start(program, python, *arguments):
    return StoreUp(program, python, *SEGMENT, *arguments)


def test_a_restarted_store_has_the_ports_that_it_is_told(program, python):
    free = [servers.free_port(), servers.free_port()]
    ports = ("--port", str(free[0]), "--daemon-port", str(free[1]))
    for _ in range(2):
        with start(program, python, *ports) as store:
            variables = store.wait_ready().variables()
            assert variables["MOONCAKE_MASTER"] == f"127.0.0.1:{free[0]}"
            assert variables["MOONCAKE_CLIENT"] == f"127.0.0.1:{free[1]}"
            store.process.send_signal(signal.SIGINT)
            assert store.wait() == 0


def run_client(python, variables):
    return subprocess.run([python, "-c", CLIENT], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "MC_LOG_LEVEL": "ERROR", **variables}, check=False)


@pytest.mark.parametrize("arguments", [(), ("--embedded",)], ids=["daemon", "embedded"])
def test_clients_reach_it_by_what_it_prints(program, python, arguments):
    with start(program, python, *arguments) as store:
        variables = store.wait_ready().variables()
        assert variables["MOONCAKE_PROTOCOL"] == "tcp"
        assert ("MOONCAKE_CLIENT" in variables) == (not arguments)
        assert ("MOONCAKE_STANDALONE_STORAGE" in variables) == (not arguments)
        health = servers.ask(int(variables["MOONCAKE_MASTER_METRICS_PORT"]), "/metrics")
        assert f"master_total_capacity_bytes {1 << 26}\n" in health
        done = run_client(python, variables)
        assert done.stdout == "done\n", done.stdout + done.stderr
        store.process.send_signal(signal.SIGINT)
        assert store.wait() == 0, store.log()
        assert len(store.err) == 3, f"noise: {store.log()}"


def test_it_listens_on_loopback_but_for_the_ports_that_it_names(program, python):
    with start(program, python) as store:
        variables = store.wait_ready().variables()
        master = listening(store.part("mooncake_master"))
        daemon = listening(store.part("mooncake_client"))
        assert master == {(LOOPBACK, int(variables["MOONCAKE_MASTER"].split(":")[1])),
                          (LOOPBACK, int(variables["MOONCAKE_MASTER_METRICS_PORT"]))}
        port = int(variables["MOONCAKE_CLIENT"].split(":")[1])
        others = {pair for pair in daemon if pair[0] != LOOPBACK}
        assert daemon - others == {(LOOPBACK, port)}
        assert len(others) == 2 and all(15000 <= other[1] <= 17000 for other in others)
        assert any("ALL addresses" in line and "15000" in line and "17000" in line
                   for line in store.err)


def test_the_port_is_the_masters(program, python):
    port = servers.free_port()
    with start(program, python, "--port", str(port), "--embedded") as store:
        assert store.wait_ready().variables()["MOONCAKE_MASTER"] == f"127.0.0.1:{port}"
        second = StoreUp(program, python, *SEGMENT, "--port", str(port))
        with second:
            assert second.wait() == 1
        assert second.out == []
        assert len(second.err) == 1 and str(port) in second.err[0] and "--port" in second.err[0]
        store.process.send_signal(signal.SIGTERM)
        assert store.wait() == 0


@pytest.mark.parametrize("arguments", [(), ("--embedded",)], ids=["daemon", "embedded"])
def test_a_kill_leaves_nothing_behind(program, python, arguments):
    with start(program, python, *arguments) as store:
        store.wait_ready()
        assert len(store.parts) == 2
        store.process.kill()
        assert store.wait() == -signal.SIGKILL


@pytest.mark.parametrize("arguments, word, name", [
    ((), "mooncake_master", "master"), ((), "mooncake_client", "daemon"),
    (("--embedded",), "store_agent.owner", "owner")], ids=["master", "daemon", "owner"])
def test_a_part_that_ends_is_noticed(program, python, arguments, word, name):
    with start(program, python, *arguments) as store:
        pid = store.wait_ready().part(word)
        os.kill(pid, signal.SIGKILL)
        assert store.wait() == 1
        assert f"the {name} (process {pid}) ended by signal 9" in store.err[-1]


# The owner waits for a master that does not answer; who is tired of that ends it.
def test_a_second_signal_ends_it_at_once(program, python):
    with start(program, python, "--embedded") as store:
        os.kill(store.wait_ready().part("mooncake_master"), signal.SIGSTOP)
        store.process.send_signal(signal.SIGINT)
        owner = store.part("store_agent.owner")
        wait_until(lambda: closed_input(owner), "the end of the owner's input")
        store.process.send_signal(signal.SIGINT)
        assert store.wait() == 128 + signal.SIGINT


def closed_input(pid):
    """The other end of its standard input is gone: it sees that at its next read."""
    target = os.readlink(f"/proc/{pid}/fd/0")
    return all(target != other for other in links_of(parent_of(pid)))


def parent_of(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as text:
        return int(text.read().rpartition(")")[2].split()[1])


def links_of(pid):
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            yield os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue


@pytest.mark.parametrize("arguments, named", [
    (("--segment-gb", "0"), "--segment-gb"), (("--segment-gb", "nan"), "nan"),
    (("--segment-gb", "-1"), "-1"), (("--segment-gb", "much"), "much"),
    (("--segment-gb", "1e9"), "1e9"), (("--segment-gb", "inf"), "inf"),
    (("--port", "0"), "--port"), (("--port", "70000"), "70000"), (("--port", "x"), "'x'"),
    (("--colour",), "--colour")])
def test_wrong_options_are_one_line(program, python, arguments, named):
    done = subprocess.run([program, "store", "up", "--python", python, *arguments],
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1 and named in done.stderr


def script(path, text):
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_what_is_missing_is_one_line_that_says_how_to_get_it(program, tmp_path):
    bare = script(tmp_path / "bare", f"#!/bin/sh\nexec {sys.executable} -S \"$@\"\n")
    for python, parts in ((bare, (servers.PACKAGE, "pip install", "--python")),
                          (str(tmp_path / "absent"), ("absent", "--python"))):
        done = subprocess.run([program, "store", "up", "--python", python], capture_output=True,
                              text=True, timeout=60, check=False)
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert all(part in done.stderr for part in parts), done.stderr


def test_the_package_is_the_one_that_setup_installs():
    with open(os.path.join(ROOT, "scripts", "requirements-mooncake.in"), encoding="utf-8") as text:
        assert servers.PACKAGE in text.read().splitlines()


def fake_package(folder, master):
    """An interpreter whose Mooncake has this master."""
    (folder / "mooncake").mkdir()
    (folder / "mooncake" / "__init__.py").write_text("")
    script(folder / "mooncake" / "mooncake_master", master)
    return script(folder / "python", "#!/bin/sh\nexport PYTHONPATH=\"$PYTHONPATH:"
                  f"{folder}\"\nexec {sys.executable} -S \"$@\"\n")


def test_a_master_that_does_not_start_is_tried_on_other_ports(program, tmp_path):
    tries = tmp_path / "tries"
    python = fake_package(tmp_path, f"#!/bin/sh\necho \"$2\" >> {tries}\n"
                          "echo address in use >&2\nexit 3\n")
    with start(program, python) as store:
        assert store.wait() == 1
        assert len(set(tries.read_text().split())) == servers.PORT_TRIES
        assert len(store.err) == 1
        assert "exit code 3" in store.err[0] and "address in use" in store.err[0]


def test_a_signal_before_it_is_ready_ends_it(program, tmp_path):
    mark = tmp_path / "started"
    python = fake_package(tmp_path, f"#!/bin/sh\necho $$ > {mark}\nexec sleep 1000\n")
    with start(program, python) as store:
        wait_until(lambda: mark.exists() and mark.read_text(), "the master's start")
        store.process.send_signal(signal.SIGTERM)
        assert store.wait() == 128 + signal.SIGTERM
        assert store.out == []
        pid = int(mark.read_text())
        wait_until(lambda: not os.path.exists(f"/proc/{pid}"), "the master's end")


def test_variables_that_nobody_takes_end_it(program, python):
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run([program, "store", "up", "--python", python, *SEGMENT], stdout=full,
                              stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and "standard output" in done.stderr


def test_a_closed_standard_output_is_said_like_a_full_one(program, python):
    command = [program, "store", "up", "--python", python, *SEGMENT]
    done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *command], stderr=subprocess.PIPE,
                          text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and "standard output" in done.stderr, done.stderr


def test_a_port_that_somebody_listens_on_is_not_taken():
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        with pytest.raises(servers.StoreError, match="cannot be taken"):
            servers.require_free(taken.getsockname()[1])


# The daemon's clients must not wait for a master that is gone, and an owner has to unmount.
@pytest.mark.parametrize("embedded", [False, True])
def test_the_owner_is_stopped_before_the_master(python, embedded, monkeypatch):
    folder = os.path.dirname(subprocess.run(
        [python, "-c", "import mooncake; print(mooncake.__file__)"], capture_output=True,
        text=True, check=True).stdout)
    monkeypatch.setattr(servers, "programs_folder", lambda: folder)
    monkeypatch.setattr(sys, "executable", python)
    stopped = []
    stop = servers.Child.stop

    def record(child, *arguments):
        assert running.master.alive(), "the master has to be there until the owner is gone"
        stop(child, *arguments)
        stopped.append((child.name, child.process.returncode))
    monkeypatch.setattr(servers.Child, "stop", record)
    running = servers.Servers(servers.Settings(segment_bytes=1 << 26, embedded=embedded))
    try:
        running.start()
        segments = len(running._segments())
        assert segments == 1
        if embedded:
            running.owner.stop(servers.OWNER_STOP_SECONDS, running.pause,
                               running.owner.process.stdin.close)
            assert running._segments() == [], "it unmounts"
            stopped.clear()
        running.stop()
    finally:
        running.kill()
    assert [name for name, _ in stopped] == ["owner" if embedded else "daemon", "master"]
    assert stopped[-1] == ("master", 0)
