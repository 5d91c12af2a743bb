"""The laws of free memory: the machine and every control group limit it."""

from pathlib import Path

import pytest

from headscope.data.machine import available_memory, machine_memory

MIB = 2**20


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:   51200 kB\nMemFree: 1 kB\n"}
JOB = {
    "proc/self/cgroup": "0::/slurm/job_7\n",
    "sys/fs/cgroup/slurm/job_7/memory.max": "max\n",
    "sys/fs/cgroup/slurm/job_7/memory.current": f"{3 * MIB}\n",
    "sys/fs/cgroup/slurm/memory.max": f"{20 * MIB}\n",
    "sys/fs/cgroup/slurm/memory.current": f"{8 * MIB}\n",
    "sys/fs/cgroup/slurm/memory.stat": f"anon 5\ninactive_file {2 * MIB}\n",
}
OLD = {
    "proc/self/cgroup": "5:cpu:/\n4:hugetlb,memory:/a\n",
    "sys/fs/cgroup/memory/a/memory.limit_in_bytes": f"{7 * MIB}",
    "sys/fs/cgroup/memory/a/memory.usage_in_bytes": f"{2 * MIB}",
}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (MEMINFO, 50 * MIB),
        (MEMINFO | JOB, 14 * MIB),  # the parent's limit; its page cache can be given back
        (MEMINFO | OLD, 5 * MIB),
        ({}, machine_memory()),
    ],
)
def test_the_smallest_limit_holds(tmp_path, files, expected):
    assert available_memory(written(tmp_path, files)) == expected


def test_a_group_above_its_limit_leaves_nothing(tmp_path):
    used = {"sys/fs/cgroup/memory/a/memory.usage_in_bytes": f"{9 * MIB}"}
    assert available_memory(written(tmp_path, MEMINFO | OLD | used)) == 0


def test_this_machine_has_less_than_all_of_its_memory_available():
    assert 0 < available_memory() <= machine_memory()
