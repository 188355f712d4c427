"""hitide serve --config FILE."""

from conftest import Server, run_program

USAGE = 2


def refused(program, path, *arguments):
    result = run_program(program, "serve", "--config", str(path), *arguments)
    assert result.returncode == USAGE, result.stderr
    (line,) = result.stderr.splitlines()
    return line


def test_a_file_serves_and_the_command_line_wins(program, model, tmp_path):
    path = tmp_path / "serve.toml"
    path.write_text(f"""# a machine's settings
model-path = "{model}"
context_length = 1024
page-size = 16
threads = 1
port = 0
hicache-size = "200MB"
hicache-storage-backend = "file"
served-model-name = "from-the-file"
max-running-requests = 2
enable-cache-report = false
trust-remote-code = true

[hicache-storage-backend-extra-config]
path = "{tmp_path / 'store'}"
max_size = "100MB"
""")
    server = Server(program, model, "--config", str(path), "--page-size", "32")
    try:
        server.wait_ready()
        assert server.client.models.list().data[0].id == "from-the-file"
        out = "\n".join(server.out)
        assert "context 1024 tokens, 2 requests at a time" in out
        assert "pages of 32 tokens" in out, "the flag wins"
        assert str(tmp_path / "store") in out
        assert any("flags_without_effect" in line and "--trust-remote-code" in line
                   for line in server.err)
        assert server.chat("Hello", tokens=2).usage.hitide["explanation_id"], "the flag again"
        assert server.stop() == 0
    finally:
        server.process.kill()


def test_errors_name_file_line_key_and_value(program, tmp_path):
    path = tmp_path / "serve.toml"
    path.write_text('model-path = "m.gguf"\n\npage-size = 5000\n')
    line = refused(program, path)
    assert f"{path}:3: page-size: '5000'" in line and "1..1024" in line
    path.write_text('model-path = "m.gguf"\nhicache-rato = 2\n')
    line = refused(program, path)
    assert f"{path}:2: hicache-rato" in line and "did you mean --hicache-ratio?" in line
    path.write_text("model-path = \n")
    assert f"{path}: this is not TOML: line 1" in refused(program, path)
    path.write_text('page-size = 32\ndisable-radix-cache = true\n')
    assert "--hicache-size" in refused(program, path, "-m", "m.gguf", "--hicache-size", "1")
    assert "none.toml" in refused(program, tmp_path / "none.toml")
    assert ".toml" in refused(program, tmp_path / "serve.ini")
    path.write_text('config = "other.toml"\n')
    assert f"{path}:1: config" in refused(program, path)


def test_what_is_printed_as_defaults_has_the_new_options(program):
    printed = run_program(program, "serve", "--print-defaults").stdout
    lines = dict(line.split(" ", 1) for line in printed.splitlines() if line.startswith("--"))
    assert lines["--max-header-bytes"] == "65536"
    assert lines["--max-connections"] == "256"
    assert lines["--config"] == "none"
