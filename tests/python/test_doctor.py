"""`hitide doctor` with the real Mooncake: each pool's row, proven with pages that went to the store
and back."""

import json
import os
import subprocess

import pytest

from conftest import Server
from mooncake_tools import StoreUp, children, find_mooncake_python, wait_until

KEYS = {"pool", "bytes", "allocator", "client", "verdict", "path", "reason", "advice"}


@pytest.fixture(scope="module")
def python():
    return find_mooncake_python()


def clean_environment(variables=None):
    """Without what somebody else's store needs."""
    kept = {name: value for name, value in os.environ.items() if "MOONCAKE" not in name}
    return {**kept, **(variables or {})}


def doctor(program, python, *arguments, variables=None):
    return subprocess.run(
        [program, "doctor", "--hicache-storage-backend", "mooncake", "--python", python,
         *arguments], capture_output=True, text=True, timeout=120, check=False,
        stdin=subprocess.DEVNULL, env=clean_environment(variables))


def rows(program, python, *arguments, code=0, variables=None):
    """{pool: row}."""
    done = doctor(program, python, *arguments, "--json", variables=variables)
    assert done.returncode == code, done.stdout + done.stderr
    found = json.loads(done.stdout)["registration"]
    for row in found:
        assert KEYS <= set(row)
        assert row["path"] != "zero_copy" or "16 pages put in" in row["cost"], "it is proven"
    warned = [line for line in done.stderr.splitlines() if " W pool_registration " in line]
    bad = [row["pool"] for row in found
           if row["verdict"] not in ("ok", "logical_no_buffer", "client_down",
                                     "transport_unavailable")]
    assert len(warned) == len(bad) and all(f"pool={pool}" in line
                                           for pool, line in zip(bad, warned)), done.stderr
    return {row["pool"]: row for row in found}


def said(row):
    return row["verdict"], row["path"]


@pytest.mark.parametrize("mode", [(), ("--standalone",)], ids=["embedded", "standalone"])
def test_what_works_by_itself(program, python, mode):
    found = rows(program, python, "--start-store", *mode)
    client = "standalone" if mode else "embedded"
    for pool in ("kv", "draft"):
        assert said(found[pool]) == ("ok", "zero_copy")
        assert found[pool]["client"] == client
        assert found[pool]["allocator"] == "shm"
        assert found[pool]["bytes"] >= 16 * (1 << 16)
        assert found[pool]["advice"] == ""
    found = rows(program, python, "--start-store", *mode, "--preset", "synthetic-logical")
    assert said(found["kv"]) == ("logical_no_buffer", "markers_only")
    assert found["kv"]["bytes"] == 0
    assert said(found["c4"]) == said(found["swa"]) == ("ok", "zero_copy")


@pytest.mark.parametrize("mode, verdict", [((), "not_shareable"),
                                           (("--standalone",), "outside_store_segment")],
                         ids=["embedded", "standalone"])
def test_pools_in_private_memory(program, python, mode, verdict):
    start = ("--start-store", *mode)
    found = rows(program, python, *start, "--host-allocator", "kv=mmap")
    assert said(found["kv"]) == (verdict, "staged")
    assert "--host-allocator kv=shm" in found["kv"]["advice"]
    assert "16 pages put in" in found["kv"]["cost"] and "copy" in found["kv"]["cost"]
    assert said(found["draft"]) == ("ok", "zero_copy")

    found = rows(program, python, *start, "--host-allocator", "draft=mmap", "--no-staging")
    assert said(found["kv"]) == ("ok", "zero_copy")
    assert said(found["draft"]) == (verdict, "off")

    found = rows(program, python, *start, "--host-allocator", "mmap", "--no-staging", code=1)
    assert said(found["kv"]) == said(found["draft"]) == (verdict, "off")


@pytest.mark.parametrize("mode", [(), ("--standalone",)], ids=["embedded", "standalone"])
def test_pools_in_memory_of_the_stores_client(program, python, mode):
    found = rows(program, python, "--start-store", *mode, "--host-allocator", "kv=store",
                 "--host-allocator", "draft=shm")
    assert said(found["kv"]) == said(found["draft"]) == ("ok", "zero_copy")
    assert (found["kv"]["allocator"], found["draft"]["allocator"]) == ("store", "shm")


# The agent's own test variables: an adoption without effect.
def test_memory_that_cannot_be_adopted(program, python):
    found = rows(program, python, "--start-store", "--standalone",
                 variables={"HITIDE_TEST_ADOPTIONS_MAX": "1"})
    for pool in ("kv", "draft"):
        assert said(found[pool]) == ("adoption_failed", "zero_copy")
        assert found[pool]["allocator"] == "store"
        assert f"{found[pool]['bytes']} bytes at" in found[pool]["reason"]
        assert "moved to store memory" in found[pool]["reason"]


def test_the_table_fits_on_one_screen(program, python):
    done = doctor(program, python, "--start-store", "--standalone", "--preset",
                  "synthetic-logical", "--host-allocator", "mmap")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[:2] == ["store: mooncake", "L3 is on"]
    assert len(lines) <= 24
    for word in ("pool", "size", "allocator", "client", "verdict", "path", "markers_only",
                 "outside_store_segment", "costs:", "because:", "change:",
                 "--host-allocator c4=shm"):
        assert word in done.stdout, word


# The configured system: the variables that `hitide store up` prints, as serve would read them.
@pytest.mark.parametrize("mode", [("--embedded",), ()], ids=["embedded", "standalone"])
def test_a_store_that_runs(program, python, mode):
    with StoreUp(program, python, "--segment-gb", "0.125", *mode) as store:
        variables = store.wait_ready().variables()
        found = rows(program, python, variables=variables)
        for pool in ("kv", "draft"):
            assert said(found[pool]) == ("ok", "zero_copy")
            assert found[pool]["client"] == ("embedded" if mode else "standalone")
        # A process that gives memory itself waits until it is there.
        if mode:
            given = {**variables, "MOONCAKE_GLOBAL_SEGMENT_SIZE": str(1 << 28)}
            assert said(rows(program, python, variables=given)["kv"]) == ("ok", "zero_copy")
        config = json.dumps({"master_server_address": variables["MOONCAKE_MASTER"],
                             "local_hostname": "127.0.0.1", "protocol": "tcp",
                             "global_segment_size": 0})
        found = rows(program, python, "--hicache-storage-backend-extra-config", config)
        assert (said(found["kv"]), found["kv"]["client"]) == (("ok", "zero_copy"), "embedded")


def test_a_server_that_runs(program, python, model):
    with StoreUp(program, python, "--segment-gb", "0.125") as store:
        variables = store.wait_ready().variables()
        server = Server(program, model, "--context-length", "512", "--hicache-size", "64MB",
                        "--hicache-storage-backend", "mooncake",
                        "--hicache-storage-backend-extra-config", json.dumps({"python": python}),
                        env=clean_environment(variables))
        try:
            url = server.wait_ready().url

            def ask(*arguments):
                return subprocess.run([program, "doctor", "--url", url, *arguments],
                                      capture_output=True, text=True, timeout=60, check=False)
            done = ask("--json")
            assert done.returncode == 0, done.stdout + done.stderr
            answer = json.loads(done.stdout)
            assert (answer["status"], answer["backend"]) == ("on", "mooncake")
            (row,) = answer["registration"]
            assert KEYS <= set(row)
            assert (row["pool"], row["client"]) == ("kv", "standalone")
            assert said(row) == ("ok", "zero_copy")
            done = ask()
            assert done.returncode == 0
            assert "storage mooncake: on" in done.stdout and "adopted" in done.stdout
            assert " zero_copy\n" in done.stdout
        finally:
            server.kill()


def test_a_store_that_is_down(program, python):
    variables = {"MOONCAKE_MASTER": "127.0.0.1:1", "MOONCAKE_PROTOCOL": "tcp",
                 "MOONCAKE_GLOBAL_SEGMENT_SIZE": "0"}
    found = rows(program, python, "--host-allocator", "kv=store", code=1, variables=variables)
    for pool, allocator in (("kv", "store"), ("draft", "shm")):
        assert said(found[pool]) == ("client_down", "off")
        assert found[pool]["allocator"] == allocator
        assert found[pool]["reason"] != ""
        assert "MOONCAKE_MASTER" in found[pool]["advice"]


def test_rdma_without_a_device(program, python):
    variables = {"MOONCAKE_MASTER": "127.0.0.1:1", "MOONCAKE_PROTOCOL": "rdma",
                 "MOONCAKE_DEVICE": "mlx5_77", "MOONCAKE_GLOBAL_SEGMENT_SIZE": "0"}
    found = rows(program, python, code=1, variables=variables)
    for pool in ("kv", "draft"):
        assert said(found[pool]) == ("transport_unavailable", "off")
        assert "MOONCAKE_PROTOCOL=tcp" in found[pool]["reason"] + found[pool]["advice"]


def test_the_store_of_its_own_is_gone_afterwards(program, python):
    process = subprocess.Popen([program, "doctor", "--hicache-storage-backend", "mooncake",
                                "--python", python, "--start-store"], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, env=clean_environment())
    parts = {}

    def started():
        parts.update(children(process.pid))
        for pid in list(parts):
            parts.update(children(pid))
        return any("mooncake_master" in command for command in parts.values())
    wait_until(started, "the store's start")
    process.kill()
    process.wait()
    for pid, command in parts.items():
        wait_until(lambda one=pid: not os.path.exists(f"/proc/{one}"), f"the end of {command}")


def test_wrong_options_are_one_line(program, python, tmp_path):
    for arguments, code, named in (
            (("--hicache-storage-backend", "memory", "--start-store"), 2, "--start-store"),
            (("--hicache-storage-backend", "memory", "--standalone"), 2, "--standalone"),
            (("--host-allocator", "mamba=shm", "--start-store"), 2, "mamba"),
            (("--host-allocator", "kv=paper", "--start-store"), 2, "paper"),
            (("--preset", "nothing"), 2, "nothing"),
            ((), 2, "MOONCAKE_MASTER"),
            (("--hicache-storage-backend-extra-config", "{"), 2, "JSON"),
            (("--url", "http://127.0.0.1:1", "--preset", "synthetic-draft"), 2, "--preset"),
            (("--url", "ftp://here"), 2, "ftp://here"),
            (("--url", "http://127.0.0.1:1"), 3, "127.0.0.1:1"),
            (("--start-store", "--python", str(tmp_path / "absent")), 1, "absent")):
        done = subprocess.run(
            [program, "doctor", *(() if "memory" in arguments or "--url" in arguments else
                                  ("--hicache-storage-backend", "mooncake")), *arguments],
            capture_output=True, text=True, timeout=60, check=False, env=clean_environment())
        assert done.returncode == code, done.stdout + done.stderr
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1 and named in done.stderr


def machine(program, *arguments, code=0):
    """{subject: line}."""
    done = subprocess.run([program, "doctor", *arguments, "--json"], capture_output=True, text=True,
                          timeout=60, check=False, env=clean_environment())
    assert done.returncode == code, done.stdout + done.stderr
    lines = json.loads(done.stdout)["machine"]
    for line in lines:
        assert list(line) == ["subject", "state", "found", "advice"]
        assert bool(line["advice"]) == (line["state"] != "ok"), line
    return {line["subject"]: line for line in lines}


def test_the_machine_for_a_server_as_it_would_start(program, tmp_path):
    store = str(tmp_path / "not" / "yet")
    found = machine(program, "--machine", "--directory", store)
    assert {"memory", "huge_pages", "locked_memory", "open_files", "numa", "processors", "disk",
            "file_system"} <= set(found)
    assert str(tmp_path) in found["disk"]["found"] and store in found["disk"]["found"]
    assert not (tmp_path / "not").exists(), "nothing is made"
    many = machine(program, "--machine", "--threads", "512")["processors"]
    assert many["state"] == "advice" and "--threads" in many["advice"]
    shm = machine(program, "--machine", "--directory", "/dev/shm/hitide_store")["file_system"]
    assert shm["state"] == "advice" and "tmpfs" in shm["found"]


def test_what_cannot_work_is_a_problem_and_exit_1(program, tmp_path):
    much = machine(program, "--machine", "--hicache-size", "100TB", code=1)["memory"]
    assert much["state"] == "problem" and "--hicache-size" in much["advice"]
    (tmp_path / "file").write_text("")
    taken = machine(program, "--machine", "--directory", str(tmp_path / "file"), code=1)["disk"]
    assert taken["state"] == "problem" and "no directory" in taken["found"]
    absent = str(tmp_path / "absent")
    none = machine(program, "--machine", "--hicache-storage-backend", "mooncake", "--python",
                   absent, "--hicache-storage-backend-extra-config",
                   '{"master_server_address": "127.0.0.1:1"}', code=1)["interpreter"]
    assert none["state"] == "problem" and absent in none["found"]


def test_the_interpreter_that_has_mooncake(program, python):
    found = machine(program, "--machine", "--hicache-storage-backend", "mooncake", "--python",
                    python, "--hicache-storage-backend-extra-config",
                    '{"master_server_address": "127.0.0.1:1"}')
    assert found["interpreter"]["state"] == "ok" and python in found["interpreter"]["found"]


def test_a_trial_has_both_and_its_text_what_to_do(program):
    done = subprocess.run([program, "doctor", "--json"], capture_output=True, text=True, timeout=60,
                          check=False, env=clean_environment())
    assert set(json.loads(done.stdout)) == {"registration", "machine"}
    text = subprocess.run([program, "doctor", "--threads", "512"], capture_output=True, text=True,
                          timeout=60, check=False, env=clean_environment()).stdout
    assert "L3 is on" in text and "machine: " in text and "processors     advice" in text
    assert "open_files     ok" not in text, "only what is to be done"
    wrong = subprocess.run([program, "doctor", "--threads", "many"], capture_output=True, text=True,
                           timeout=60, check=False, env=clean_environment())
    assert wrong.returncode == 2 and "--threads" in wrong.stderr
