"""Makes tables in the form of data sets on the Hugging Face hub, and the same rows as JSON lines.

Regenerate (pyarrow):  python scripts/make_golden_tables.py
Everything goes to tests/golden/tables/. Texts are invented; fields, nesting and file names are those of cais/mmlu,
allenai/ai2_arc, openai/gsm8k and EleutherAI/coqa. The compression of zstd.parquet is not supported.
"""

import json
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "tables"


def mmlu(count):
    return [
        {
            "question": f"Which of these numbers of {subject} is {n}?",
            "subject": subject,
            "choices": [str(n + 1), str(n), f"“{n + 2}”", "none"],
            "answer": 1,
        }
        for subject in ("astronomy", "virology")
        for n in range(3, 3 + count)
    ]


def arc():
    labels = [["A", "B", "C", "D"], ["1", "2", "3"]]
    return [
        {
            "id": f"Q{i}",
            "question": f"What falls at {i + 2} metres a second?",
            "choices": {"text": [f"thing {i}.{j}" for j in range(len(label))], "label": label},
            "answerKey": label[i],
        }
        for i, label in enumerate(labels)
    ]


def gsm8k():
    return [{"question": f"What is {a} plus {a}?", "answer": f"{a}+{a}=<<{a}+{a}={2 * a}>>{2 * a}\n#### {2 * a}"} for a in (4, 7)]


def coqa():
    turns = {"input_text": ["Who walks?", "Where?"], "turn_id": [1, 2]}
    answers = {"input_text": ["Ann", "in the wood"], "span_start": [0, 10]}
    return [{"id": "a", "story": "Ann walks in the wood.\nIt is late.", "questions": turns, "answers": answers}]


def write(name, rows, compression="snappy"):
    path = OUT / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path, compression=compression)
    if compression == "snappy":
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        path.with_suffix(".jsonl").write_text(lines, encoding="utf-8")


write("all/test-00000-of-00001.parquet", mmlu(4))
write("all/dev-00000-of-00001.parquet", mmlu(2))
write("ARC-Easy/test-00000-of-00001.parquet", arc())
write("main/test-00000-of-00001.parquet", gsm8k())
write("data/validation-00000-of-00001.parquet", coqa())
write("zstd.parquet", gsm8k(), "zstd")
