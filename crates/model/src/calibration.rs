//! Where a model's calibration artefacts are stored, by kind. What they contain is defined below.

use std::io;
use std::path::PathBuf;

use spattn_base::given;

/// Name of the folder of artefacts within a model's folder.
pub const CALIBRATION: &str = "calibration";

/// A place for artefacts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CalibrationPlace {
    /// Inside the program, with the built-in model.
    Embedded,
    /// A folder, which need not exist.
    Folder(PathBuf),
    /// Nowhere: meaningless weights have no artefacts.
    None,
}

macro_rules! embedded {
    ($($kind:literal),*) => {
        &[$((
            $kind,
            include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/models/builtin/calibration/", $kind, ".safetensors")),
        )),*]
    };
}

/// The artefacts of the built-in model; `spattn calibrate --out models/builtin/calibration` makes all
/// of them.
const EMBEDDED: &[(&str, &[u8])] = embedded!["double_sparsity", "loki", "duo_attention", "hash_attention"];

/// File name of the artefact of a kind.
pub fn file_name(kind: &str) -> String {
    format!("{kind}.safetensors")
}

impl CalibrationPlace {
    /// The name of the artefact of `kind` in messages.
    pub fn label(&self, kind: &str) -> String {
        match self {
            Self::Embedded => format!("builtin/{CALIBRATION}/{}", file_name(kind)),
            Self::Folder(folder) => folder.join(file_name(kind)).display().to_string(),
            Self::None => format!("calibration of {kind}"),
        }
    }

    /// The bytes of the artefact; `None` if there is none.
    ///
    /// # Errors
    /// If the file exists but cannot be read.
    pub fn read(&self, kind: &str) -> io::Result<Option<Vec<u8>>> {
        match self {
            Self::Embedded => Ok(EMBEDDED.iter().find(|(name, _)| *name == kind).map(|(_, bytes)| bytes.to_vec())),
            Self::Folder(folder) => match given::plain_bytes(&folder.join(file_name(kind))) {
                Ok(bytes) => Ok(Some(bytes)),
                Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
                Err(e) => Err(e),
            },
            Self::None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_there_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let place = CalibrationPlace::Folder(dir.path().join("calibration"));
        assert_eq!(place.read("loki").unwrap(), None);
        std::fs::create_dir(dir.path().join("calibration")).unwrap();
        std::fs::write(dir.path().join("calibration/loki.safetensors"), b"x").unwrap();
        assert_eq!(place.read("loki").unwrap().unwrap(), b"x");
        assert!(place.label("loki").ends_with("calibration/loki.safetensors"));
        assert_eq!(CalibrationPlace::Embedded.read("topk").unwrap(), None);
    }
}
