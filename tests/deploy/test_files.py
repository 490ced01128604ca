"""The files under examples/deploy against the gateway and each other: paths, ports, names, times.

No container runtime and no cluster is needed; what only those can show is in docs/deploy.md.
"""

import re
import tomllib
from typing import Any

import pytest

from tests.support.gateway import driven
from tests.support.processes import ROOT
from tests.support.shipped import (
    FOLDER,
    KNOWN,
    PROJECT,
    all_of,
    compose,
    default,
    drain_s,
    flat,
    image_environment,
    kubernetes,
    only,
    part,
    seconds,
    sent_to_the_build,
    settings_of,
    size_bytes,
    stages,
    unit,
    unit_config,
)

RESERVE = 128
TAG = f"asgi-gateway:{PROJECT['version']}"
IMAGE = settings_of(image_environment())


# --- image ----------------------------------------------------------------------------------------


def test_both_stages_have_the_same_python() -> None:
    """The second takes over an environment that was made for the first's interpreter."""
    build, final = (only(stage, "FROM").words for stage in stages())
    assert build == ["python:3.11-slim", "AS", "build"]
    assert final == build[:1]


def test_what_is_copied_exists_and_is_sent() -> None:
    build, final = stages()
    sources = [path for i in all_of(build, "COPY") for path in i.words[:-1]]
    assert len(sources) == 7
    for path in sources:
        assert (ROOT / path).exists(), path
        assert sent_to_the_build(path), path
    assert {i.rest.split()[0] for i in all_of(final, "COPY")} == {"--from=build"}


@pytest.mark.parametrize("path", [".git", ".venv", "tests", "docs", "asgi_gateway/__pycache__"])
def test_nothing_else_is_sent(path: str) -> None:
    assert not sent_to_the_build(path)


def test_the_packages_are_copied_whole() -> None:
    """And all that building them reads."""
    sources = {path for i in all_of(stages()[0], "COPY") for path in i.words[:-1]}
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert {*tool["hatch"]["build"]["targets"]["wheel"]["packages"], PROJECT["readme"]} <= sources


def test_everything_installed_is_locked_by_hash() -> None:
    commands = [command for i in all_of(stages()[0], "RUN") for command in i.rest.split("&&")]
    installing = [command for command in commands if " install " in command]
    assert len(installing) == 3
    for command in installing:
        assert "--require-hashes" in command or "--no-index --no-deps dist/" in command


def test_it_runs_as_nobody_in_particular() -> None:
    final = stages()[-1]
    assert only(final, "USER").rest == "10001:10001"
    (owned,) = [i for i in all_of(final, "COPY") if "--chown" in i.rest]
    assert "--chown=10001:10001" in owned.rest
    assert owned.words[-1] == only(final, "VOLUME").rest == IMAGE["state.dir"]


def test_signals_reach_the_process() -> None:
    """Without a shell between."""
    final = stages()[-1]
    assert only(final, "ENTRYPOINT").rest == '["/app/bin/asgi-gateway"]'
    assert only(final, "CMD").rest == '["serve"]'
    assert only(final, "STOPSIGNAL").rest == unit()["KillSignal"][0] == "SIGTERM"
    assert "asgi-gateway" in PROJECT["scripts"]


def test_its_health_check_asks_its_port() -> None:
    command = only(stages()[-1], "HEALTHCHECK").words
    assert command[0] == "/app/bin/python"
    assert f"http://127.0.0.1:{IMAGE['server.port']}/livez" in command[-1]
    assert only(stages()[-1], "EXPOSE").rest == IMAGE["server.port"]


# --- names and versions ---------------------------------------------------------------------------


def mapped(name: str) -> dict[str, Any]:
    """The settings in one of the files."""
    if name == "compose":
        return settings_of(compose("compose.yaml")["services"]["gateway"]["environment"])
    if name == "kubernetes":
        return flat(tomllib.loads(kubernetes()["ConfigMap"]["data"]["config.toml"]))
    if name == "unit":
        pairs = [pair.split("=", 1) for line in unit()["Environment"] for pair in line.split()]
        return settings_of(dict(pairs)) | unit_config()
    return IMAGE


@pytest.mark.parametrize("name", ["image", "compose", "kubernetes", "unit"])
def test_settings_are_spelt_as_the_gateway_does(name: str) -> None:
    settings = mapped(name)
    assert settings
    assert settings.keys() <= KNOWN


@pytest.mark.parametrize("name", ["compose", "kubernetes", "unit"])
def test_clients_need_a_key_everywhere(name: str) -> None:
    assert mapped(name)["access.keys_file"]


def test_one_version() -> None:
    gateway = compose("compose.yaml")["services"]["gateway"]
    standing = compose("compose.stand-in.yaml")["services"]["vllm"]
    (container,) = kubernetes()["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    assert gateway["image"] == standing["image"] == container["image"] == TAG
    assert f"-t {TAG} ." in (FOLDER / "Containerfile").read_text()


# --- compose --------------------------------------------------------------------------------------


@pytest.fixture
def gateway() -> dict[str, Any]:
    service: dict[str, Any] = compose("compose.yaml")["services"]["gateway"]
    return service


def test_compose_builds_the_image(gateway: dict[str, Any]) -> None:
    context = (FOLDER / gateway["build"]["context"]).resolve()
    assert context == ROOT
    assert context / gateway["build"]["dockerfile"] == FOLDER / "Containerfile"


def test_compose_upstream_is_a_service_that_listens_there(gateway: dict[str, Any]) -> None:
    for files in (["compose.yaml"], ["compose.yaml", "compose.stand-in.yaml"]):
        vllm = compose(*files)["services"]["vllm"]
        words = [*vllm.get("entrypoint", []), *vllm["command"]]
        port = words[words.index("--port") + 1]
        assert words[words.index("--host") + 1] == "0.0.0.0"
        assert gateway["environment"]["ASGI_GATEWAY_UPSTREAM__URLS"] == f"http://vllm:{port}"


def test_compose_keeps_state_and_little_else(gateway: dict[str, Any]) -> None:
    whole = compose("compose.yaml")
    assert [v.split(":") for v in gateway["volumes"]] == [["state", IMAGE["state.dir"]]]
    assert {"state"} <= whole["volumes"].keys()
    assert gateway["read_only"] is True
    assert gateway["cap_drop"] == ["ALL"]
    assert gateway["security_opt"] == ["no-new-privileges:true"]
    assert gateway["ports"][0].rpartition(":")[2] == IMAGE["server.port"]
    (secret,) = gateway["secrets"]
    assert secret in whole["secrets"]
    assert gateway["environment"]["ASGI_GATEWAY_ACCESS__KEYS_FILE"] == f"/run/secrets/{secret}"


def test_compose_without_a_gpu() -> None:
    vllm = compose("compose.yaml", "compose.stand-in.yaml")["services"]["vllm"]
    assert not {"deploy", "volumes", "shm_size"} & vllm.keys()
    script, command, *_ = vllm["entrypoint"]
    assert (script, command) == ("/app/bin/loadgen", "upstream")
    assert "loadgen" in PROJECT["scripts"]
    assert vllm["healthcheck"] == {"disable": True}
    with_gpu = compose("compose.yaml")["services"]["vllm"]["deploy"]["resources"]
    assert with_gpu["reservations"]["devices"][0]["capabilities"] == ["gpu"]


# --- Kubernetes -----------------------------------------------------------------------------------


@pytest.fixture
def pod() -> dict[str, Any]:
    spec: dict[str, Any] = kubernetes()["StatefulSet"]["spec"]["template"]["spec"]
    return spec


async def test_probes_ask_what_is_answered_without_an_upstream(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    (port,) = container["ports"]
    probes = {name: container[f"{name}Probe"] for name in ("startup", "liveness", "readiness")}
    paths = {name: probe["httpGet"]["path"] for name, probe in probes.items()}
    assert paths == {"startup": "/livez", "liveness": "/livez", "readiness": "/readyz"}
    async with driven("http://127.0.0.1:1") as it:
        answers = {path: (await it.client.get(path)).status for path in paths.values()}
    assert answers == {"/livez": 200, "/readyz": 503}
    for probe in probes.values():
        assert probe["httpGet"]["port"] == port["name"]
    assert str(port["containerPort"]) == IMAGE["server.port"]


def test_never_two_pods_and_the_service_leads_to_the_one(pod: dict[str, Any]) -> None:
    objects = kubernetes()
    assert objects["StatefulSet"]["spec"]["replicas"] == 1
    labels = objects["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    service = objects["Service"]["spec"]
    assert service["publishNotReadyAddresses"] is True
    assert service["ports"][0]["targetPort"] == pod["containers"][0]["ports"][0]["name"]
    for selector in (
        service["selector"],
        objects["StatefulSet"]["spec"]["selector"]["matchLabels"],
        objects["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
        objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    assert objects["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1


def test_the_pod_may_do_next_to_nothing(pod: dict[str, Any]) -> None:
    context = pod["securityContext"]
    user = f"{context['runAsUser']}:{context['runAsGroup']}"
    assert user == only(stages()[-1], "USER").rest
    assert context["fsGroup"] == context["runAsGroup"]
    assert context["runAsNonRoot"] is True
    assert pod["enableServiceLinks"] is False
    assert pod["automountServiceAccountToken"] is False
    assert pod["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_what_the_pod_reads_is_mounted(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    (claim,) = kubernetes()["StatefulSet"]["spec"]["volumeClaimTemplates"]
    provided = {volume["name"] for volume in pod["volumes"]} | {claim["metadata"]["name"]}
    assert mounts.keys() == provided
    assert mounts["state"] == IMAGE["state.dir"]
    assert container["args"] == ["serve", "--config", f"{mounts['config']}/config.toml"]
    assert mapped("kubernetes")["access.keys_file"] == f"{mounts['keys']}/keys.toml"


def test_the_pod_reaches_its_upstream() -> None:
    """The policy lets it, by the port of the URL."""
    (url,) = mapped("kubernetes")["upstream.urls"]
    to_vllm = kubernetes()["NetworkPolicy"]["spec"]["egress"][0]
    assert url.rpartition(":")[2] == str(to_vllm["ports"][0]["port"])


# --- systemd --------------------------------------------------------------------------------------


def test_the_unit_starts_what_is_installed_and_documented() -> None:
    command = unit()["ExecStart"][0]
    page = (ROOT / "docs" / "deploy.md").read_text()
    assert command.split()[1:] == ["serve", "--config", "/etc/asgi-gateway/config.toml"]
    for path in (command.split()[0].removesuffix("/bin/asgi-gateway"), command.split()[-1]):
        assert path in page
    assert f"groupadd --system {unit()['SupplementaryGroups'][0]}" in page
    assert unit_config()["access.keys_file"] in page


def test_the_unit_keeps_its_state() -> None:
    assert unit()["DynamicUser"] == ["yes"]
    assert mapped("unit")["state.dir"] == f"/var/lib/{unit()['StateDirectory'][0]}"


def test_the_unit_does_not_start_again_what_was_refused() -> None:
    from asgi_gateway.__main__ import EXIT_USAGE

    assert unit()["Restart"] == ["on-failure"]
    assert unit()["RestartPreventExitStatus"] == [str(EXIT_USAGE)]


# --- sizes and times ------------------------------------------------------------------------------


def test_who_stops_it_waits_for_the_drain() -> None:
    waits = (
        float(unit()["TimeoutStopSec"][0]),
        seconds(compose("compose.yaml")["services"]["gateway"]["stop_grace_period"]),
        kubernetes()["StatefulSet"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"],
    )
    assert all(wait >= drain_s() + 10 for wait in waits)


def test_descriptors_suffice_for_a_poll_of_each_sample() -> None:
    """A hundred thousand clients' connections beside the gateway's own."""
    nofile = compose("compose.yaml")["services"]["gateway"]["ulimits"]["nofile"]
    needed = 131_072 + default("upstream.max_connections") + RESERVE
    for limit in (int(unit()["LimitNOFILE"][0]), nofile["soft"], nofile["hard"]):
        assert limit >= needed


def test_memory_is_limited_where_admission_reads_it() -> None:
    """The gateway reads a container's limit and a unit's, so neither needs `store.max_bytes`."""
    (container,) = kubernetes()["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    limit = size_bytes(unit()["MemoryMax"][0])
    assert size_bytes(container["resources"]["limits"]["memory"]) == limit
    assert size_bytes(compose("compose.yaml")["services"]["gateway"]["mem_limit"]) == limit
    assert "store.max_bytes" not in unit_config()


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("nginx.conf", r"proxy_read_timeout (\d+s);"),
        ("nginx.conf", r"proxy_send_timeout (\d+s);"),
        ("nginx-several.conf", r"retrieve_futures\?\$ \{\n[^}]*proxy_read_timeout (\d+s);"),
        ("nginx-several.conf", r"proxy_send_timeout (\d+s);"),
        ("haproxy.cfg", r"timeout client (\d+s)$"),
        ("haproxy.cfg", r"timeout server (\d+s)$"),
        ("haproxy-several.cfg", r"timeout client (\d+s)$"),
        ("haproxy-several.cfg", r"timeout server (\d+s)$"),
    ],
)
def test_a_proxy_outwaits_a_poll(name: str, pattern: str) -> None:
    """The SDK's 45 s, so that the proxy is never the first to give up."""
    assert seconds(part(FOLDER / name, pattern)) > 45 > default("poll.hold_s")


@pytest.mark.parametrize(
    ("name", "from_client", "to_gateway"),
    [
        (
            "nginx.conf",
            r"client's\.\n +keepalive_timeout (\d+s);",
            r"keepalive 1024;\n +keepalive_timeout (\d+s);",
        ),
        (
            "nginx-several.conf",
            r"client's\.\n +keepalive_timeout (\d+s);",
            r"keepalive 1024;\n +keepalive_timeout (\d+s);",
        ),
        ("haproxy.cfg", r"timeout http-keep-alive (\d+s)$", r"pool-purge-delay (\d+s)$"),
        ("haproxy-several.cfg", r"timeout http-keep-alive (\d+s)$", r"pool-purge-delay (\d+s) "),
    ],
)
def test_idle_connections_end_at_the_client(name: str, from_client: str, to_gateway: str) -> None:
    """The SDK's pool keeps them for 90 s; each hop keeps them longer than the one before it."""
    assert seconds(part(FOLDER / name, from_client)) > 90
    assert seconds(part(FOLDER / name, to_gateway)) < default("server.keepalive_s")


@pytest.mark.parametrize("name", ["nginx.conf", "nginx-several.conf"])
def test_a_proxy_takes_the_largest_body(name: str) -> None:
    size = size_bytes(part(FOLDER / name, r"client_max_body_size (\w+);"))
    assert size == default("limits.asample_body_bytes")


def test_a_page_names_every_file() -> None:
    page = "".join((ROOT / "docs" / name).read_text() for name in ("deploy.md", "scaling.md"))
    for path in FOLDER.iterdir():
        if path.is_file():
            assert f"(../examples/deploy/{path.name})" in page, path.name
    assert not re.search(r"asgi-gateway:(?!\d+\.\d+\.\d+)\d", page)


# --- the page -------------------------------------------------------------------------------------

ROW = re.compile(
    r"^\| ([\d,]+) \| ([\d,]+) \| ([\d,]+)(?:, [a-z ]+)? \| ([\d,]+) \| ([\d,]+) MB \|$"
)


def test_the_table_of_sizes_is_what_its_figures_give() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text()
    measured = (ROOT / "docs" / "performance.md").read_text()
    for figure in ("beside the 375 bytes of its prompt | 1,024 B | 729 B | 749 B", "13,855 B"):
        assert figure in measured
    rows = [ROW.match(line) for line in page.splitlines()]
    numbers = [[int(n.replace(",", "")) for n in row.groups()] for row in rows if row]
    assert len(numbers) == 5
    upstream = default("upstream.max_connections")
    for samples, tokens, connections, descriptors, megabytes in numbers:
        assert descriptors == connections + upstream + RESERVE
        held = samples * (749 + 375 * tokens / 64) + connections * 13_855 + upstream * 16_000
        assert megabytes == round(60 + held / 1e6)


def test_the_page_has_the_commands_of_the_files() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text()
    for name in ("Containerfile", "compose.yaml", "kubernetes.yaml"):
        commands = re.findall(r"^# {3}(\S.*)$", (FOLDER / name).read_text(), re.MULTILINE)
        assert commands, name
        for command in commands:
            assert f"\n    {command}\n" in page, command


def test_the_page_installs_what_the_image_does() -> None:
    """The same two steps, into another folder."""
    page = (ROOT / "docs" / "deploy.md").read_text()
    steps = [step for i in all_of(stages()[0], "RUN") for step in i.rest.split("&&")]
    commands = [step.strip() for step in steps if "/app/bin/python install" in step]
    assert len(commands) == 2
    for command in commands:
        assert f"\n    {command.replace('/app/', '/opt/asgi-gateway/')}\n" in page
