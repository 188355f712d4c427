"""Settings that an operator brings from SGLang: its launch line, and Mooncake's three sources."""

import json
import os
import shutil

import pytest

from conftest import Server, run_program, text_of, wait_for
from mooncake_tools import StoreUp, find_mooncake_python

USAGE = 2
EXTRA = "--hicache-storage-backend-extra-config"
FILE = "SGLANG_HICACHE_MOONCAKE_CONFIG_PATH"
MOONCAKE = ["--hicache-storage-backend", "mooncake"]

# One launch line as it is, but for the paths, the address and the port.
LAUNCH_VARIABLES = {
    "MOONCAKE_MASTER": "0.0.0.0:50058", "MOONCAKE_DEVICE": "mlx5_0,mlx5_1,mlx5_2,mlx5_3",
    "MOONCAKE_PROTOCOL": "rdma", "MOONCAKE_GLOBAL_SEGMENT_SIZE": "0",
    "SGLANG_ENABLE_UNIFIED_RADIX_TREE": "1",
}
LAUNCH_FLAGS = """
    --served-model-name deepseek-v4-flash --page-size 64 --enable-hierarchical-cache
    --hicache-ratio 1.7 --hicache-mem-layout page_first --hicache-io-backend kernel
    --hicache-storage-backend mooncake --hicache-write-policy write_through
    --hicache-storage-prefetch-policy wait_complete --trust-remote-code --tensor-parallel-size 4
    --mem-fraction-static 0.8 --enable-metrics --enable-cache-report --moe-runner-backend marlin
    --max-running-requests 100 --dist-init-addr 0.0.0.0:29500
""".split()


def environment(variables, python=None):
    """This one without any of Mooncake's; `python` is then what python3 means."""
    env = {name: value for name, value in os.environ.items()
           if not name.startswith(("MOONCAKE_", "SGLANG_")) and name != "LOCAL_HOSTNAME"}
    if python is not None:
        env["PATH"] = os.path.dirname(python) + os.pathsep + env["PATH"]
    env.update(variables)
    return env


@pytest.fixture(scope="module")
def python():
    return find_mooncake_python()


def lines_with(server, word):
    return [line for line in server.err if f" {word} " in line]


def test_the_launch_line_serves(program, model, python):
    if os.path.isdir("/sys/class/infiniband/mlx5_0"):
        pytest.skip("this machine has the device that the launch line names")
    # Small, and on a free port; all else is the line. The server adds --enable-cache-report too.
    flags = [flag for flag in LAUNCH_FLAGS if flag != "--enable-cache-report"]
    server = Server(program, model, *flags, "--context-length", "1024",
                    env=environment(LAUNCH_VARIABLES, python))
    try:
        server.wait_ready()
        assert server.client.models.list().data[0].id == "deepseek-v4-flash"
        first = server.chat("Say a word. " * 40)
        again = server.chat("Say a word. " * 40)
        assert text_of(first) == text_of(again)
        assert again.usage.prompt_tokens_details.cached_tokens >= 64
        out = "\n".join(server.out)
        assert "pages of 64 tokens" in out and "100 requests at a time" in out
        assert "MOONCAKE_PROTOCOL=tcp" in out
        (warning,) = server.warnings()
        assert "storage_off" in warning and "MOONCAKE_PROTOCOL=tcp" in warning
        (layout,) = lines_with(server, "memory_layout")
        assert "page_first, kernel" in layout and "stored as page_packed" in layout
        (ranks,) = lines_with(server, "tensor_parallel_size")
        assert "given=4" in ranks
        (engine,) = lines_with(server, "flags_without_effect")
        assert ('"--trust-remote-code, --mem-fraction-static, --moe-runner-backend, '
                '--dist-init-addr"') in engine
        (source,) = lines_with(server, "mooncake_configuration")
        assert "MOONCAKE_*" in source
        assert server.stop() == 0
    finally:
        server.process.kill()


def test_a_small_ratio_is_warned_of_and_retries_go_by_time(start):
    server = start("--hicache-size", "0", "--hicache-ratio", "0.5",
                   "--hicache-storage-backend", "none",
                   "--hicache-storage-prefetch-retry-poll-interval", "8",
                   "--hicache-storage-prefetch-retry-max-attempts", "8",
                   "--hicache-io-backend", "direct")
    (warning,) = server.warnings()
    assert "hicache_ratio" in warning and "given=0.5" in warning and "--hicache-size" in warning
    (retry,) = lines_with(server, "prefetch_retry_poll_interval")
    assert "given=8" in retry and "prefetch_retry_interval" in retry and "0.25 s" in retry
    (layout,) = lines_with(server, "memory_layout")
    assert "page_packed, direct" in layout and "copied by the engine" in layout


def test_the_flag_for_retries_is_the_key(program):
    defaults = run_program(program, "serve", "--print-defaults").stdout
    assert "--hicache-storage-prefetch-retry-max-attempts 4" in defaults
    result = run_program(program, "serve", "-m", "/none.gguf",
                         "--hicache-storage-prefetch-retry-max-attempts", "17")
    assert result.returncode == 2 and "0..16" in result.stderr


def test_of_an_option_given_twice_the_last_one_counts(program):
    def complaint(*arguments):
        return run_program(program, "serve", "-m", "/none.gguf", *arguments).stderr
    assert "--page-size: '0'" in complaint("--page-size", "32", "--page-size", "0")
    assert "/none.gguf" in complaint("--page-size", "0", "--page-size", "32", "--tp", "0",
                                     "--tp-size", "2", "--tensor-parallel-size", "4")


def test_an_installed_program_brings_its_package(program, model, tmp_path):
    (tmp_path / "bin").mkdir()
    installed = shutil.copy2(program, tmp_path / "bin" / "hitide")
    package = tmp_path / "share" / "hitide" / "python"
    (package / "hitide" / "store_agent").mkdir(parents=True)
    interpreter = tmp_path / "interpreter"
    interpreter.write_text(f'#!/bin/sh\necho "$PYTHONPATH" >{tmp_path}/part\n'
                           f"mv {tmp_path}/part {tmp_path}/asked\nexit 1\n")
    interpreter.chmod(0o755)
    variables = {"MOONCAKE_MASTER": "127.0.0.1:1", "MOONCAKE_PROTOCOL": "tcp",
                 "MOONCAKE_GLOBAL_SEGMENT_SIZE": "0"}
    for keys, expected in (({}, package), ({"package_path": "/elsewhere"}, "/elsewhere")):
        (tmp_path / "asked").unlink(missing_ok=True)
        config = json.dumps({"python": str(interpreter), **keys})
        server = Server(str(installed), model, *MOONCAKE, EXTRA, config, "--context-length", "256",
                        "--hicache-size", "50MB", env=environment(variables))
        try:
            wait_for((tmp_path / "asked").exists, 60, "a start of the interpreter")
            assert (tmp_path / "asked").read_text().strip() == str(expected)
        finally:
            server.kill()


def refused(program, *arguments, **variables):
    """The one line that says why these settings cannot be."""
    result = run_program(program, "serve", "-m", "model.gguf", *MOONCAKE, *arguments,
                         env=environment(variables))
    assert result.returncode == USAGE, result.stderr
    (line,) = result.stderr.strip().splitlines()
    return line


def test_bad_values_name_key_value_and_source(program, tmp_path):
    line = refused(program, MOONCAKE_MASTER="m:1", MOONCAKE_PROTOCOL="ftp")
    assert "MOONCAKE_PROTOCOL: protocol: 'ftp'" in line
    line = refused(program, MOONCAKE_MASTER="m:1", MOONCAKE_GLOBAL_SEGMENT_SIZE="4tb")
    assert "MOONCAKE_GLOBAL_SEGMENT_SIZE: global_segment_size: '4tb'" in line
    line = refused(program, EXTRA, '{"master_server_address": "m"}')
    assert f"{EXTRA}: master_server_address: 'm'" in line
    path = tmp_path / "mooncake.json"
    path.write_text('{"master_server_address": "m:1", "check_server": "perhaps"}')
    line = refused(program, **{FILE: str(path), "MOONCAKE_MASTER": "m:1"})
    assert str(path) in line and "check_server: 'perhaps'" in line
    line = refused(program, **{FILE: str(tmp_path / "none.json")})
    assert FILE in line and str(tmp_path / "none.json") in line
    line = refused(program)
    for part in ("MOONCAKE_MASTER", FILE, EXTRA, "master_server_address"):
        assert part in line


@pytest.mark.parametrize("name, text", [
    ("c.json", '{"master_server_address": "m:1", "protocl": "tcp"}'),
    ("c.toml", "master_server_address = 'm:1'\nprotocl = 'tcp'\n"),
    ("c.yaml", "master_server_address: m:1\nprotocl: tcp\n"),
    ("c.yml", "{master_server_address: m:1, protocl: tcp}"),
])
def test_an_unknown_key_is_an_error_where_that_is_wanted(program, tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    line = refused(program, EXTRA, f"@{path}", "--strict-config")
    assert str(path) in line and "'protocl'" in line and "did you mean protocol?" in line


def test_an_unknown_key_is_one_warning(program, model, tmp_path):
    config = {"path": str(tmp_path / "store"), "max_size": "100MB", "prefetch_treshold": 1}
    server = Server(program, model, "--context-length", "256", "--hicache-size", "50MB", EXTRA,
                    json.dumps(config), env=environment({}))
    try:
        server.wait_ready()
        (warning,) = server.warnings()
        assert "'prefetch_treshold'" in warning
        assert "did you mean prefetch_threshold?" in warning
    finally:
        server.kill()


@pytest.mark.parametrize("source", ["environment", "file", "extra.toml", "extra.yaml"])
def test_a_real_store_from_every_source(program, model, python, tmp_path, source):
    with StoreUp(program, python, "--segment-gb", "0.125", "--embedded") as store:
        variables = store.wait_ready().variables()
        settings = {"master_server_address": variables["MOONCAKE_MASTER"],
                    "master_metrics_port": int(variables["MOONCAKE_MASTER_METRICS_PORT"]),
                    "protocol": "tcp", "local_hostname": "127.0.0.1", "global_segment_size": 0,
                    "tenant_id": "default"}
        ours = {"prefetch_threshold": 32, "start_limit": 30}
        arguments, env = [EXTRA, json.dumps(ours)], {}
        # Whoever does not win names a store that is not there.
        elsewhere = {"MOONCAKE_MASTER": "127.0.0.1:1", "MOONCAKE_PROTOCOL": "tcp"}
        if source == "environment":
            env = variables
        elif source == "file":
            path = tmp_path / "mooncake.json"
            path.write_text(json.dumps(settings))
            env = {**elsewhere, FILE: str(path)}
        else:
            path = tmp_path / source
            between = " = " if source.endswith("toml") else ": "
            path.write_text("".join(f"{key}{between}{json.dumps(value)}\n"
                                    for key, value in {**settings, **ours}.items()))
            arguments, env = [EXTRA, f"@{path}"], {**elsewhere, FILE: "/none.json"}
        server = Server(program, model, *MOONCAKE, *arguments, "--context-length", "1024",
                        "--hicache-size", "64MB", "--tp", "4", "--hicache-storage-prefetch-policy",
                        "wait_complete", "--host-allocator", "mmap", "--host-allocator", "kv=shm",
                        env=environment(env, python))
        try:
            server.wait_ready()
            assert server.warnings() == []
            assert any("storage mooncake" in line for line in server.out), server.log()
            server.chat("Count the stones. " * 40)
            server.wait_stored(1)
            assert server.stop() == 0
        finally:
            server.process.kill()
