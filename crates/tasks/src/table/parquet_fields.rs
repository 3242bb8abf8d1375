//! The structures of Parquet's metadata with the kinds of their fields, numbered as in its format (`parquet.thrift` of
//! apache/parquet-format). They are those that the reader knows, so that a file can be [skimmed](super::thrift) as it would be
//! read.

use super::thrift::Fields;
use super::thrift::Kind::{Byte, Bytes, Double, List, Structure, Truth, Whole};

/// `FileMetaData`.
pub(super) const FILE: Fields = &[
    (1, Whole),
    (2, List(&Structure(SCHEMA_ELEMENT))),
    (3, Whole),
    (4, List(&Structure(ROW_GROUP))),
    (5, List(&Structure(KEY_VALUE))),
    (6, Bytes),
    (7, List(&Structure(COLUMN_ORDER))),
    (8, Structure(ENCRYPTION_ALGORITHM)),
    (9, Bytes),
];

/// `PageHeader`.
pub(super) const PAGE: Fields = &[
    (1, Whole),
    (2, Whole),
    (3, Whole),
    (4, Whole),
    (5, Structure(DATA_PAGE)),
    (6, Structure(EMPTY)),
    (7, Structure(DICTIONARY_PAGE)),
    (8, Structure(DATA_PAGE_2)),
];

const EMPTY: Fields = &[];
const SCHEMA_ELEMENT: Fields = &[
    (1, Whole),
    (2, Whole),
    (3, Whole),
    (4, Bytes),
    (5, Whole),
    (6, Whole),
    (7, Whole),
    (8, Whole),
    (9, Whole),
    (10, Structure(LOGICAL_TYPE)),
];
const LOGICAL_TYPE: Fields = &[
    (1, Structure(EMPTY)),
    (2, Structure(EMPTY)),
    (3, Structure(EMPTY)),
    (4, Structure(EMPTY)),
    (5, Structure(&[(1, Whole), (2, Whole)])),
    (6, Structure(EMPTY)),
    (7, Structure(TIME)),
    (8, Structure(TIME)),
    (10, Structure(&[(1, Byte), (2, Truth)])),
    (11, Structure(EMPTY)),
    (12, Structure(EMPTY)),
    (13, Structure(EMPTY)),
    (14, Structure(EMPTY)),
    (15, Structure(EMPTY)),
    (16, Structure(&[(1, Byte)])),
    (17, Structure(&[(1, Bytes)])),
    (18, Structure(&[(1, Bytes), (2, Whole)])),
    (19, Structure(EMPTY)),
];
const TIME: Fields =
    &[(1, Truth), (2, Structure(&[(1, Structure(EMPTY)), (2, Structure(EMPTY)), (3, Structure(EMPTY))]))];
const ROW_GROUP: Fields = &[
    (1, List(&Structure(COLUMN_CHUNK))),
    (2, Whole),
    (3, Whole),
    (4, List(&Structure(&[(1, Whole), (2, Truth), (3, Truth)]))),
    (5, Whole),
    (6, Whole),
    (7, Whole),
];
const COLUMN_CHUNK: Fields = &[
    (1, Bytes),
    (2, Whole),
    (3, Structure(COLUMN)),
    (4, Whole),
    (5, Whole),
    (6, Whole),
    (7, Whole),
    (8, Structure(COLUMN_CRYPTO)),
    (9, Bytes),
];
const COLUMN: Fields = &[
    (1, Whole),
    (2, List(&Whole)),
    (3, List(&Bytes)),
    (4, Whole),
    (5, Whole),
    (6, Whole),
    (7, Whole),
    (8, List(&Structure(KEY_VALUE))),
    (9, Whole),
    (10, Whole),
    (11, Whole),
    (12, Structure(STATISTICS)),
    (13, List(&Structure(&[(1, Whole), (2, Whole), (3, Whole)]))),
    (14, Whole),
    (15, Whole),
    (16, Structure(&[(1, Whole), (2, List(&Whole)), (3, List(&Whole))])),
    (17, Structure(&[(1, Structure(BOX)), (2, List(&Whole))])),
];
const BOX: Fields =
    &[(1, Double), (2, Double), (3, Double), (4, Double), (5, Double), (6, Double), (7, Double), (8, Double)];
const STATISTICS: Fields =
    &[(1, Bytes), (2, Bytes), (3, Whole), (4, Whole), (5, Bytes), (6, Bytes), (7, Truth), (8, Truth), (9, Whole)];
const KEY_VALUE: Fields = &[(1, Bytes), (2, Bytes)];
const COLUMN_ORDER: Fields = &[(1, Structure(EMPTY)), (2, Structure(EMPTY))];
const COLUMN_CRYPTO: Fields = &[(1, Structure(EMPTY)), (2, Structure(&[(1, List(&Bytes)), (2, Bytes)]))];
const ENCRYPTION_ALGORITHM: Fields = &[(1, Structure(AES)), (2, Structure(AES))];
const AES: Fields = &[(1, Bytes), (2, Bytes), (3, Truth)];
const DATA_PAGE: Fields = &[(1, Whole), (2, Whole), (3, Whole), (4, Whole), (5, Structure(STATISTICS))];
const DICTIONARY_PAGE: Fields = &[(1, Whole), (2, Whole), (3, Truth)];
const DATA_PAGE_2: Fields =
    &[(1, Whole), (2, Whole), (3, Whole), (4, Whole), (5, Whole), (6, Whole), (7, Truth), (8, Structure(STATISTICS))];
