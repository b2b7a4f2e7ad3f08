"""A jail with a GPU sees that GPU's node and the driver's common ones, and is told where the tool chain lies."""

from __future__ import annotations

from pathlib import Path

from kernelassay.sandbox import gpu_environment
from kernelassay.sandbox._pieces import gpu_nodes


def test_one_card_of_several(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).symlink_to("/dev/null")
    (tmp_path / "nvidia2").touch()  # no device

    def names(minor: int | None) -> set[str]:
        return {Path(node).name for node in gpu_nodes(minor, tmp_path)}

    common = {"nvidiactl", "nvidia-uvm"}
    assert names(1) == common | {"nvidia1"}
    assert names(0) == common | {"nvidia0"}
    assert names(None) == common | {"nvidia0", "nvidia1", "nvidia10"}
    assert gpu_nodes(0, tmp_path / "nothing") == ()


def test_caches_lie_in_the_scratch_folder() -> None:
    told = gpu_environment()
    assert told["CUDA_CACHE_PATH"].startswith("{scratch}") and told["TRITON_CACHE_DIR"].startswith("{scratch}")
