"""Pack and unpack what the training needs: the books, and the program that makes the rows.

  python3 prepare.py pack --books BOOKS --binary PROGRAM      (-> train_data/packed/*.bz2, train_data/train-rows.xz)
  python3 prepare.py unpack --data train_data                 (-> train_data/books/*.txt, train_data/spattn)

Nothing is changed in the texts: the generator of training rows reads them as they are.
"""
import argparse
import bz2
import gzip
import lzma
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path


def pack_one(job):
    source, target = job
    data = gzip.decompress(source.read_bytes()) if source.suffix == ".gz" else source.read_bytes()
    target.write_bytes(bz2.compress(data, 9))


def unpack_one(job):
    source, target = job
    target.write_bytes(bz2.decompress(source.read_bytes()))


def run(function, jobs):
    with ProcessPoolExecutor() as pool:
        list(pool.map(function, jobs))
    size = sum(target.stat().st_size for _, target in jobs)
    print(f"{len(jobs)} books, {size / 1e6:.1f} MB in {jobs[0][1].parent}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["pack", "unpack"])
    parser.add_argument("--books", type=Path, help="folder of *.txt.gz or *.txt")
    parser.add_argument("--binary", type=Path, help="stripped program, to be packed beside the books")
    parser.add_argument("--out", type=Path, default=Path("train_data"))
    parser.add_argument("--data", type=Path, default=Path("train_data"))
    args = parser.parse_args()
    if args.what == "pack":
        files = sorted([*args.books.glob("*.txt.gz"), *args.books.glob("*.txt")])
        folder = args.out / "packed"
        jobs = [(file, folder / (file.name.removesuffix(".gz") + ".bz2")) for file in files]
    else:
        folder = args.data / "books"
        jobs = [(file, folder / file.stem) for file in sorted((args.data / "packed").glob("*.bz2"))]
    folder.mkdir(parents=True, exist_ok=True)
    if not jobs:
        parser.error("no books found")
    packed_binary = (args.out if args.what == "pack" else args.data) / "train-rows.xz"
    if args.what == "pack" and args.binary:
        packed_binary.write_bytes(lzma.compress(args.binary.read_bytes(), preset=3))
    if args.what == "unpack" and packed_binary.exists():
        binary = packed_binary.with_suffix("")
        binary.write_bytes(lzma.decompress(packed_binary.read_bytes()))
        binary.chmod(0o755)
    run(pack_one if args.what == "pack" else unpack_one, jobs)


if __name__ == "__main__":
    main()
