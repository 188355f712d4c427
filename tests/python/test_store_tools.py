"""hitide inspect and hitide verify: what lies in a file store, and whether it can be read."""

import fcntl
import http.server
import json
import os
import shutil
import threading

import pytest

from conftest import ROOT, Server, run_program

DONE, FAILED, USAGE, UNAVAILABLE, NOT_FOUND, DAMAGED = 0, 1, 2, 3, 4, 5
GOLDEN = os.path.join(ROOT, "tests", "golden", "file_store")


@pytest.fixture
def store(tmp_path):
    """A store of the golden segments: whatever keys they hold, they verify."""
    folder = tmp_path / "store"
    (folder / "segments").mkdir(parents=True)
    names = sorted(name for name in os.listdir(GOLDEN) if name.endswith(".seg"))
    # Segments of one directory are of one format.
    shutil.copy(os.path.join(GOLDEN, names[0]), folder / "segments" / names[0])
    (folder / "FORMAT").write_text("hitide-file-store 1\n")
    (folder / "LOCK").write_text("")
    return folder


def run_json(program, command, *arguments, code=DONE):
    result = run_program(program, command, *map(str, arguments), "--json")
    assert result.returncode == code, result.stderr
    return json.loads(result.stdout)


def one_line(result, code):
    assert result.returncode == code, (result.returncode, result.stdout, result.stderr)
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("hitide "), result.stderr
    return lines[0]


def damage(store):
    """Turns a bit in the payload of the last record; returns the segment's path."""
    path = next((store / "segments").iterdir())
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    return path


def test_a_sound_store(program, store):
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    contents = run_json(program, "inspect", store)["stores"][0]
    assert contents["path"] == str(store) and contents["format"] == 1 and contents["owner"] == 0
    assert contents["objects"] == 2  # of three records, one is erased
    assert contents["dead_bytes"] > 0 and contents["live_bytes"] > 0
    assert contents["damaged_bytes"] == 0
    assert sum(space["objects"] for space in contents["namespaces"]) == contents["objects"]
    assert sum(seg["file_bytes"] for seg in contents["segments"]) == contents["file_bytes"]
    verified = run_json(program, "verify", store)
    assert verified["sound"] and verified["stores"][0]["objects"] == 2
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before
    text = run_program(program, "inspect", store, "--segments").stdout
    assert "2 objects" in text and "live" in text and "segment " in text and "namespace" in text


def test_damage_is_found_named_and_dropped(program, store):
    path = damage(store)
    found = run_json(program, "verify", store, code=DAMAGED)
    assert not found["sound"]
    (entry,) = found["stores"][0]["damage"]
    assert entry["path"] == str(path) and entry["key"] and not entry["dropped"]
    line = one_line(run_program(program, "verify", store), DAMAGED)
    assert "--repair" in line
    assert run_json(program, "inspect", store)["stores"][0]["objects"] == 2
    repaired = run_json(program, "verify", store, "--repair")
    assert repaired["sound"] and repaired["stores"][0]["objects_dropped"] == 1
    after = run_json(program, "verify", store)
    assert after["sound"] and after["stores"][0]["objects"] == 1
    assert run_json(program, "inspect", store)["stores"][0]["objects"] == 1


def test_repair_is_refused_while_a_process_has_the_store_open(program, store):
    damage(store)
    with open(store / "LOCK", "r+", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(str(os.getpid()))
        lock.flush()
        line = one_line(run_program(program, "verify", store, "--repair"), UNAVAILABLE)
        assert str(store) in line
        # Reading needs nobody's leave.
        assert not run_json(program, "verify", store, code=DAMAGED)["sound"]
        assert run_json(program, "inspect", store)["stores"][0]["owner"] == os.getpid()


def test_folders_of_ranks_are_stores_of_one(program, store, tmp_path):
    root = tmp_path / "ranks"
    for rank in (0, 1):
        shutil.copytree(store, root / f"rank{rank}")
    assert [s["path"] for s in run_json(program, "inspect", root)["stores"]] == [
        str(root / "rank0"), str(root / "rank1")]
    damage(root / "rank1")
    stores = run_json(program, "verify", root, code=DAMAGED)["stores"]
    assert [len(one["damage"]) for one in stores] == [0, 1]


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_where_no_store_is(program, command, tmp_path):
    assert str(tmp_path) in one_line(run_program(program, command, tmp_path), NOT_FOUND)
    assert "/none/here" in one_line(run_program(program, command, "/none/here"), NOT_FOUND)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_the_directory_of_serve_is_the_default(program, command, store, tmp_path):
    environment = dict(os.environ, XDG_CACHE_HOME=str(tmp_path / "cache"))
    environment.pop("SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR", None)
    place = tmp_path / "cache" / "hitide" / "store"
    shutil.copytree(store, place)
    result = run_program(program, command, "--json", env=environment)
    assert json.loads(result.stdout)["stores"][0]["path"] == str(place)
    configured = run_program(program, command, "--json", "--hicache-storage-backend-extra-config",
                             json.dumps({"path": str(store)}), env=environment)
    assert json.loads(configured.stdout)["stores"][0]["path"] == str(store)
    bare = {key: value for key, value in environment.items()
            if key not in ("HOME", "XDG_CACHE_HOME")}
    assert "HOME" in one_line(run_program(program, command, env=bare), USAGE)


def test_a_newer_store_is_left_alone(program, store):
    (store / "FORMAT").write_text("hitide-file-store 999\n")
    for command in ("inspect", "verify"):
        assert str(store) in one_line(run_program(program, command, store), UNAVAILABLE)


@pytest.mark.parametrize("arguments, parts", [
    (["inspect", "--hicache-storage-backend", "memory"], ["--hicache-storage-backend", "memory"]),
    (["inspect", "/x", "--hicache-storage-backend", "mooncake"], ["/x", "mooncake"]),
    (["inspect", "/x", "surplus"], ["surplus"]),
    (["verify", "--hicache-storage-backend-extra-config", "{"], ["extra-config", "not JSON"]),
    (["verify", "--repare"], ["--repare"]),
])
def test_wrong_usage(program, arguments, parts):
    line = one_line(run_program(program, *arguments), USAGE)
    for part in parts:
        assert part in line


def test_a_store_that_a_server_has_open(program, model, tmp_path):
    place = tmp_path / "store"
    config = json.dumps({"path": str(place)})
    server = Server(program, model, "--hicache-storage-backend-extra-config", config)
    try:
        server.wait_ready()
        server.chat("word " * 400, tokens=1)
        server.wait_stored(10)
        contents = run_json(program, "inspect", place)["stores"][0]
        assert contents["owner"] == server.process.pid
        assert str(place) in one_line(run_program(program, "verify", place, "--repair"),
                                      UNAVAILABLE)
        assert server.stop() == DONE
    finally:
        if server.process.poll() is None:
            server.kill()
    contents = run_json(program, "inspect", place)["stores"][0]
    assert contents["owner"] == 0 and contents["pages"] >= 10
    (space,) = contents["namespaces"]
    assert len(space["name"]) == 64 and space["pages"] == contents["pages"]
    assert 0 <= space["newest_age_s"] <= space["oldest_age_s"] < 3600
    assert run_json(program, "verify", place)["stores"][0]["objects"] == contents["objects"]


class Master(http.server.BaseHTTPRequestHandler):
    """The metrics page of a master."""

    def do_GET(self):
        body = self.server.page.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def last_line(result, code):
    """The complaint, behind the log's line on where the settings come from."""
    assert result.returncode == code and result.stdout == "", result.stderr
    return result.stderr.strip().splitlines()[-1]


def mooncake(port):
    return ["inspect", "--hicache-storage-backend", "mooncake",
            "--hicache-storage-backend-extra-config",
            json.dumps({"master_server_address": "127.0.0.1:1", "master_metrics_port": port,
                        "protocol": "tcp"})]


def test_a_mooncake_store_says_what_its_master_says(program):
    with http.server.HTTPServer(("127.0.0.1", 0), Master) as master:
        master.page = ("# TYPE master_key_count gauge\nmaster_key_count 12\n"
                       "master_allocated_bytes 2097152\nmaster_total_capacity_bytes 1073741824\n"
                       "master_evicted_key_count 3\n")
        thread = threading.Thread(target=master.serve_forever)
        thread.start()
        try:
            command = mooncake(master.server_port)
            result = run_program(program, *command, "--json")
            assert result.returncode == DONE, result.stderr
            out = json.loads(result.stdout)
            assert (out["objects"], out["bytes_used"], out["bytes_limit"],
                    out["evicted_objects"]) == (12, 2097152, 1073741824, 3)
            text = run_program(program, *command).stdout
            assert "2.0 MiB of 1.0 GiB" in text and "does not list" in text
            master.page = "something else 1\n"
            line = last_line(run_program(program, *command), UNAVAILABLE)
            assert "master_metrics_port" in line
        finally:
            master.shutdown()
            thread.join()
    assert "127.0.0.1:1" in last_line(run_program(program, *command), UNAVAILABLE)
    assert "master_metrics_port" in last_line(run_program(program, *mooncake(0)), UNAVAILABLE)
    nothing = run_program(program, "inspect", "--hicache-storage-backend", "mooncake")
    assert "master_server_address" in one_line(nothing, USAGE)
