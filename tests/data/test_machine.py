"""The laws of free memory: the machine and every control group limit it."""

import pytest

from headscope.data.machine import available_memory, machine_memory

MIB = 2**20
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
USED = {"sys/fs/cgroup/memory/a/memory.usage_in_bytes": f"{9 * MIB}"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (MEMINFO, 50 * MIB),
        (MEMINFO | JOB, 14 * MIB),  # the parent's limit; its page cache can be given back
        (MEMINFO | OLD, 5 * MIB),
        (MEMINFO | OLD | USED, 0),  # above its limit
        ({}, machine_memory()),
    ],
)
def test_the_smallest_limit_holds(tmp_path, files, expected):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_memory(tmp_path) == expected


def test_this_machine_has_less_than_all_of_its_memory_available():
    assert 0 < available_memory() <= machine_memory()
