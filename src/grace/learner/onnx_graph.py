"""Run the ONNX graph of a twin. Torch-free.

Shapes: N images, C channels, H×W pixels, K classes.
"""

import os
from collections.abc import Callable

import numpy as np

from grace.base.errors import DamagedError, GraceError
from grace.base.machine import usable_cores
from grace.data.decoding import Pixels
from grace.learner.prediction import Numbers

BATCH = 64
"""Images that a graph gets at once: more need more memory."""


def send_no_reports() -> None:
    """Keep onnxruntime from reporting to its makers; call it before onnxruntime is imported.

    Otherwise its published packages keep a number for this machine in the user's cache folder and
    send events over the network. Who wants that sets ``ORT_DISABLE_TELEMETRY=0``.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def run_graph(
    graph: bytes, shape: tuple[int, int, int], num_classes: int, threads: int | None
) -> Callable[[Pixels], tuple[Numbers, Numbers]]:
    """Return ``Answerer.answer`` by onnxruntime on the CPU; its errors have many types.

    Args:
        graph: of a twin.
        shape: (C, H, W) of the learner's images.
        num_classes: K.
        threads: of the learner's settings; ``None``: one for each core that this process may use,
            or ``OMP_NUM_THREADS``.

    Raises:
        DamagedError: if it is the graph of another learner.
    """
    send_no_reports()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    limit = os.environ.get("OMP_NUM_THREADS", "")
    cores = int(limit) if limit.isdecimal() else usable_cores()
    options.intra_op_num_threads = min(threads or cores, cores)
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    (given,), outputs = session.get_inputs(), session.get_outputs()
    if given.shape[1:] != list(shape) or outputs[1].shape[1] != num_classes:
        raise DamagedError("the twin is that of another learner")

    def answer(pixels: Pixels) -> tuple[Numbers, Numbers]:
        parts = []
        for start in range(0, len(pixels), BATCH):
            images = pixels[start : start + BATCH].transpose(0, 3, 1, 2).astype(np.float32) / 255
            parts.append(session.run(["probabilities", "familiarity"], {"images": images}))
        probabilities, familiarities = (np.concatenate(own) for own in zip(*parts, strict=True))
        if not (np.isfinite(probabilities).all() and np.isfinite(familiarities).all()):
            raise GraceError("the scores are not finite: the weights are damaged")
        return probabilities, familiarities

    return answer
