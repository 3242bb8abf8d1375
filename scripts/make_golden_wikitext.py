#!/usr/bin/env python3
"""Writes tests/golden/wikitext.json: how lm-eval prepares WikiText's articles, for invented texts.

    pip install --no-deps lm_eval==0.4.13
    python3 scripts/make_golden_wikitext.py > tests/golden/wikitext.json

The rules come from lm-eval's own file, read without the rest of the package. Splitting a file into articles is repeated
here from the loading script of its data set, EleutherAI/wikitext_document_level.
"""

import importlib.util
import json
import pathlib
import random

package = importlib.util.find_spec("lm_eval").submodule_search_locations[0]
spec = importlib.util.spec_from_file_location("rules", pathlib.Path(package) / "tasks/wikitext/preprocess_wikitext.py")
rules = importlib.util.module_from_spec(spec)
spec.loader.exec_module(rules)

PIECES = [
    " ", " ", " ", "\n", "\n", " \n", "\n ", "a", "b", "The", "dogs", "N", "1", " N ", "7", "é", "°", " ° ", "\u3000", "\u00a0", "\x1f",
    " @-@ ", " @,@ ", " @.@ ", " : ", " ; ", " . ", " ! ", " ? ", " , ", ":", ".", ",", "s '", " 's", "'", "' ", " ' ",
    "\"", " \" ", "(", ")", " ( ", " ) ", "[", "]", " [ ", " ] ", "{", "}", " { ", " } ", "/", "/' 5/", "/' 5/' 6/", "/' 55/",
    "=", " = ", "= =", "= = =", "= = = =", "\n = Title = \n", "\n = = Part = = \n", "\n = = = Section = = = \n",
]
ARTICLES = [
    " \n = Robert Example = \n \n Robert Example is an actor . He was born in 1 @,@ 980 ( in a town ) ; the \" Times \" said : "
    "\" well @-@ known \" . \n \n = = Career = = \n \n It was 5 @.@ 5 ° warm . The dogs ' home 's door ' was ' open ! \n",
    " = A = \n one \n = B = \n two \n = = C = = \n three \n",
    "no title at all , and no line",
    " \n \n",
    "= = = = x = = = =\n",
    "an odd \" quote , and another \" pair \" of them ( open",
]


def articles(file):
    lines = []
    for line in file.split("\n"):
        title = line.replace("= = =", "===").replace("= =", "==").strip()
        if title.startswith("= ") and title.endswith(" ="):
            article = "\n".join(lines)
            if article.strip():
                yield article
            lines = []
        lines.append(line)
    yield "\n".join(lines)


def row(page):
    doc = {"page": page}
    results = rules.process_results(doc, (0.0,))
    words, size = results["word_perplexity"][1], results["bits_per_byte"][1]
    return {"page": page, "text": rules.wikitext_detokenizer(doc), "words": words, "bytes": size}


def files():
    yield from ARTICLES
    draw = random.Random(11)
    for _ in range(150):
        yield "".join(draw.choice(PIECES) for _ in range(draw.randint(1, 60)))


if __name__ == "__main__":
    made = [{"file": file, "pages": [row(page) for page in articles(file)]} for file in files()]
    print("[\n" + ",\n".join(json.dumps(m, ensure_ascii=False) for m in made) + "\n]")
