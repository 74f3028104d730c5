"""Row 15: keys, bucket, space. It fails fast, names what is missing, and leaves no secret in any file of the run."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from proxy import Fault, Proxy
from runs import STEPS, Case, Curve
from servers import CephRgw, Keys, Server

BEHIND = 2


def wrong_secret(case: Case) -> None:
    use(case, Keys(case.server.keys.access, Keys.new().secret))


def unknown_key(case: Case) -> None:
    use(case, Keys.new())


def no_keys(case: Case) -> None:
    case.credentials.unlink()


def no_bucket(case: Case) -> None:
    case.settings["store"]["bucket"] = "no-such-bucket"


def no_nvme(case: Case) -> None:
    (case.folder / "nvme").rmdir()


def too_little_nvme(case: Case) -> None:
    case.settings["node"]["min_free_gb"] = 900_000.0


def use(case: Case, keys: Keys) -> None:
    """Have the run's credentials file hold other keys."""
    keys.write(case.credentials)
    case.secrets.append(keys.secret)


# What is missing, the exit code, and what is said.
MISSING: dict[str, tuple[Callable[[Case], None], int, str]] = {
    "wrong secret": (wrong_secret, 5, "store credentials must be known to the store, is refused"),
    "unknown key": (unknown_key, 5, "store credentials must be known to the store, is refused"),
    "no keys": (no_keys, 5, "store credentials must be found by boto3's chain, is not found"),
    "no bucket": (no_bucket, 5, "bucket must be there, is missing"),
    "no NVMe": (no_nvme, 6, "NVMe folder must be mounted, is missing"),
    "too little NVMe": (too_little_nvme, 6, "free space must be at least"),
}
QUICK = ("wrong secret", "no bucket")


@pytest.mark.row(15, "start")
@pytest.mark.parametrize("what", [pytest.param(one, marks=[pytest.mark.quick] * (one in QUICK)) for one in MISSING])
def test_what_is_missing_at_the_start_is_named_at_once(what: str, case: Case, shows: Callable[[str], None]) -> None:
    take_away, code, said = MISSING[what]
    take_away(case)
    done = case.train()
    assert done.code == code, done.said
    assert said in done.said
    # The store is looked at before anything is submitted; a node's disk by an attempt, the same host once more never.
    assert case.attempts() == (1 if code == 6 else 0)
    shows(f"exit code {code} after {done.seconds:.1f} s")


@pytest.fixture
def keys(server: Server) -> Keys:
    """A pair of keys that a test may have revoked."""
    return server.issue()


@pytest.mark.row(15, "mid-run")
def test_keys_that_were_replaced_are_read_again_and_no_step_is_lost(
    case: Case, keys: Keys, server: Server, proxy: Proxy, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    def replace() -> None:
        use(case, server.other_keys)
        server.revoke(keys)

    use(case, keys)
    case.settings["checkpoints"]["max_behind"] = 10
    proxy.add(Fault("pass", verb="put", key="0000000010-00000001/__0_0.distcp", then=replace))
    done = case.train()
    assert done.code == 0, done.said
    assert (case.attempts(), case.curve()) == (1, undisturbed)
    assert int(case.committed()[-1].split("-")[0]) == STEPS
    durable = ", ".join(str(step) for step in case.durable(1))
    shows(f"old keys revoked at the server, the file has new ones: lost 0 steps, durable {durable}")


@pytest.mark.row(15, "mid-run")
def test_keys_that_expired_are_read_again_and_no_step_is_lost(
    case: Case, server: Server, proxy: Proxy, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    def expire() -> None:
        use(case, server.other_keys)
        old = server.keys.access
        proxy.add(Fault("answer", access_key=old, times=float("inf"), status=400, code="ExpiredToken"))

    proxy.add(Fault("pass", verb="put", key="0000000010-00000001/__0_0.distcp", then=expire))
    done = case.train()
    assert done.code == 0, done.said
    assert (case.attempts(), case.curve()) == (1, undisturbed)
    assert all(asked.access_key == server.other_keys.access for asked, status in proxy.seen[-5:] if status < 300)
    shows("lost 0 steps")


@pytest.mark.row(15, "mid-run")
def test_keys_that_were_revoked_stop_the_run_after_so_many_saves_and_are_named(
    case: Case, keys: Keys, server: Server, proxy: Proxy, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    use(case, keys)
    case.settings["checkpoints"]["max_behind"] = BEHIND
    proxy.add(Fault("pass", verb="put", key="0000000010-00000001/__0_0.distcp", then=lambda: server.revoke(keys)))
    done = case.train()
    assert done.code == 5, done.said
    assert f"saves that wait for the store must be at most {BEHIND}" in done.said
    assert "store credentials must be known to the store, is refused" in done.said
    use(case, server.other_keys)
    again = case.train()
    assert again.code == 0, again.said
    lost = max(case.steps(1)) - (case.resumed(2) or 0)
    assert case.curve() == undisturbed
    shows(f"exit code 5 at step {max(case.steps(1))}; with keys again: lost {lost} steps")


@pytest.fixture
def small(case: Case, tmp_path: Path) -> Iterator[Path]:
    """An NVMe of 96 MB for the run: a file system of its own."""
    place = tmp_path / "small"
    place.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m,mode=0700", "steelrail-faults", str(place)], check=True)
    case.settings["node"] = {"nvme": str(place), "min_free_gb": 0.01}
    yield place
    case.kill()
    subprocess.run(["umount", str(place)], check=True)


def fill(place: Path) -> None:
    """Write until nothing more fits."""
    with (place / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(2**20))
        except OSError:
            return


@pytest.mark.row(15, "mid-run")
def test_a_full_nvme_stops_the_run_after_so_many_failed_saves_and_is_named(
    case: Case, small: Path, proxy: Proxy, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    case.settings["checkpoints"]["max_behind"] = BEHIND
    proxy.add(Fault("pass", verb="put", key="0000000005-00000001/manifest.json", then=lambda: fill(small)))
    done = case.train()
    assert done.code == 6, done.said
    assert "is full" in case.notes(1) or "full" in done.said
    assert f"saves that failed in a row must be at most {BEHIND}" in case.log(1)
    (small / "filler").unlink()
    last = case.attempts()
    again = case.train()
    assert again.code == 0, again.said
    assert case.curve() == undisturbed
    resumed = case.resumed(last + 1) or 0
    shows(f"exit code 6 at step {max(case.steps(1))}, {last} attempts; with space again: resumed at {resumed}")


@pytest.fixture
def fill_store(server: Server, proxy: Proxy) -> Iterator[Callable[[], None]]:
    """Have the server out of space: Ceph by a real quota; for SeaweedFS, which has none like it, the proxy speaks."""
    if isinstance(server, CephRgw):
        quota = ("--uid=steelrail", "--quota-scope=user")

        def by_quota() -> None:
            server.control("admin", "quota", "set", *quota, "--max-size=1K")
            server.control("admin", "quota", "enable", *quota)

        yield by_quota
        server.control("admin", "quota", "disable", *quota)
        time.sleep(1.0)
    else:
        full: dict[str, Any] = {"times": float("inf"), "status": 403, "code": "QuotaExceeded"}

        def by_answers() -> None:
            for verb in ("put", "begin", "part"):
                proxy.add(Fault("answer", verb=verb, **full))

        yield by_answers


@pytest.mark.row(15, "mid-run")
def test_a_full_store_stops_the_run_after_so_many_saves_and_is_named(
    case: Case, fill_store: Callable[[], None], proxy: Proxy, shows: Callable[[str], None]
) -> None:
    case.settings["checkpoints"]["max_behind"] = BEHIND
    proxy.add(Fault("pass", verb="put", key="0000000010-00000001/__0_0.distcp", then=fill_store))
    done = case.train()
    assert done.code == 5, done.said
    assert "store must be able to take more bytes, is full" in done.said
    shows(f"exit code 5 at step {max(case.steps(1))}, {BEHIND} saves behind")
