//! The types of tensors in GGUF files, and the names of whole files' types.

/// A type by its number in files.
pub(super) enum TensorType {
    /// A supported type: blocks of so many numbers in so many bytes.
    Blocks {
        /// llama.cpp's name for the type.
        name: &'static str,
        /// Numbers of a block.
        numbers: u64,
        /// Bytes of a block.
        bytes: u64,
    },
    /// An unsupported type: llama.cpp's name for it, or its number.
    Unread(String),
}

/// The types that `candle-core` reads: number, name, numbers and bytes of a block.
const READ: [(u32, &str, u64, u64); 13] = [
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (30, "BF16", 1, 2),
    (8, "Q8_0", 32, 34),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
];

/// Types that have a name but are not read.
const UNREAD: [(u32, &str); 21] = [
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
    (40, "NVFP4"),
    (41, "Q1_0"),
];

/// The type with this number.
pub(super) fn tensor_type(number: u32) -> TensorType {
    if let Some((_, name, numbers, bytes)) = READ.iter().find(|(known, ..)| *known == number) {
        return TensorType::Blocks { name, numbers: *numbers, bytes: *bytes };
    }
    let name = UNREAD.iter().find(|(known, _)| *known == number);
    TensorType::Unread(name.map_or_else(|| format!("the unknown type {number}"), |(_, name)| (*name).to_owned()))
}

/// The names of the types that are read.
pub(super) fn types_read() -> String {
    READ.map(|(_, name, ..)| name).join(", ")
}

/// llama.cpp's name for the type of a whole file, by its number.
pub(super) fn file_type(number: usize) -> String {
    let known = match number {
        0 => "F32",
        1 => "F16",
        2 => "Q4_0",
        3 => "Q4_1",
        7 => "Q8_0",
        8 => "Q5_0",
        9 => "Q5_1",
        10 => "Q2_K",
        11 => "Q3_K_S",
        12 => "Q3_K_M",
        13 => "Q3_K_L",
        14 => "Q4_K_S",
        15 => "Q4_K_M",
        16 => "Q5_K_S",
        17 => "Q5_K_M",
        18 => "Q6_K",
        21 => "Q2_K_S",
        32 => "BF16",
        other => return format!("file type {other}"),
    };
    known.to_owned()
}
