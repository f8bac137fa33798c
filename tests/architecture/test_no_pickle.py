"""Nothing in the repository reads a file in a form that can run code, or hands text to a shell."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNSAFE = {
    "Python's object streams": r"(?i)(?<!allow_)pickl",
    "modules built on them": r"\b(shelve|dill|joblib|marshal|jsonpickle)\b",
    "torch's files, which are made of them": r"\btorch\.(load|save)\b|\btorch\.jit\.load\b"
    r"|\bfrom torch import\b.*\b(load|save)\b|\bload_state_dict_from_url\b|\btorch\.hub\b",
    "their switches": r"\bweights_only\s*=\s*False\b|\ballow_pickle\s*=\s*(?!False\b)",
    "YAML that builds any object": r"\byaml\.((unsafe|full)_)?load(_all)?\((?!.*Safe)"
    r"|\byaml\.(Unsafe|Full)?Loader\b",
    "text that becomes code": r"(?<![\w.])(eval|exec|compile|__import__)\("
    r"|\bbuiltins\.(eval|exec)\b",
    "shells": r"\bshell\s*=\s*True\b|\bos\.(system|popen)\b|\bgetoutput\b|\bgetstatusoutput\b",
}


def hits(text: str) -> list[str]:
    """Name what is unsafe in a text."""
    return [what for what, pattern in UNSAFE.items() if re.search(pattern, text)]


# Lines that read what others wrote by torch's own restricted reader, and why.
RESTRICTED = {
    # A checkpoint of the package index, converted once to a file that needs no such reader.
    'state: Mapping[str, Tensor] = torch.load(data, map_location="cpu", weights_only=True)'
}


def unsafe_lines() -> Iterator[tuple[str, str]]:
    """File and line of everything unsafe in what is shipped or run by hand."""
    for folder in ("src", "examples", "benchmarks", "docs"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for line in path.read_text().splitlines():
                if hits(line) and line.strip() not in RESTRICTED:
                    yield path.relative_to(ROOT).as_posix(), line.strip()


def test_nothing_reads_what_can_run() -> None:
    assert list(unsafe_lines()) == []


FOUND = """
import pickle
from pickle import loads
import cloudpickle
data = cPickle.load(file)
frame.to_pickle(path)
import joblib
with shelve.open(name) as shelf:
marshal.loads(data)
weights = torch.load(path)
torch.save(model, path)
from torch import load, nn
torch.hub.load('pytorch/vision', name)
read(path, weights_only=False)
np.load(path, allow_pickle=True)
np.load(path, allow_pickle=wanted)
yaml.load(text)
yaml.load(text, Loader=yaml.Loader)
yaml.unsafe_load(text)
value = eval(text)
exec(code)
__import__(name)
subprocess.run(command, shell=True)
os.system(command)
os.popen(command)
""".strip().splitlines()
NAMESAKES = """
backbone.eval()
self.eval().requires_grad_(False)
executor.submit(work)
torch.compile(forward)
re.compile(pattern)
from safetensors.torch import load
np.load(path, allow_pickle=False)
yaml.load(text, Loader=yaml.CSafeLoader)
yaml.safe_load(text)
Learner.load(path)
evaluation(learner)
a cucumber is pickier than a marshaller
""".strip().splitlines()


def test_it_is_found_and_its_namesakes_are_not() -> None:
    assert [line for line in FOUND if not hits(line)] == []
    assert [line for line in NAMESAKES if hits(line)] == []
