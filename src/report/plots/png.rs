//! Figures as PNG, for programs that do not accept SVG.
//!
//! The only font is part of the program (`fonts/`: DejaVu Sans, reduced to Latin, Greek and a few signs), so figures look the same on
//! machines without fonts.

use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb};

/// The pixels of the PNG for each pixel of the drawing, so that letters are sharp in print and on dense screens.
const SCALE: f32 = 2.0;

const FONT: &[u8] = include_bytes!("../fonts/DejaVuSans.ttf");

/// Renders a drawing as a PNG file of twice its size. The same drawing gives the same bytes.
///
/// # Errors
/// If the drawing is not SVG, or has no area.
pub fn render(svg: &str) -> Result<Vec<u8>> {
    let options = Options { fontdb: fonts(), font_family: "DejaVu Sans".to_owned(), ..Options::default() };
    let tree = Tree::from_str(svg, &options).context("a figure cannot be read back")?;
    let size = tree.size().to_int_size().scale_by(SCALE).context("a figure has no area")?;
    let mut pixels = Pixmap::new(size.width(), size.height()).context("a figure has no area")?;
    resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
    pixels.encode_png().context("a figure cannot be written as PNG")
}

fn fonts() -> Arc<fontdb::Database> {
    static FONTS: OnceLock<Arc<fontdb::Database>> = OnceLock::new();
    let load = || {
        let mut fonts = fontdb::Database::new();
        fonts.load_font_data(FONT.to_vec());
        fonts.set_sans_serif_family("DejaVu Sans");
        Arc::new(fonts)
    };
    FONTS.get_or_init(load).clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_text(text: &str) -> Vec<u8> {
        render(&format!(
            r#"<svg width="90" height="40" xmlns="http://www.w3.org/2000/svg"><text x="5" y="20" font-family="sans-serif" font-size="15">{text}</text></svg>"#
        ))
        .unwrap()
    }

    #[test]
    fn text_is_drawn_by_the_font_within() {
        let empty = with_text("");
        assert_eq!(&empty[1..4], b"PNG");
        for text in ["a", "Δ", "…", "×"] {
            assert_ne!(with_text(text), empty, "{text}");
        }
        assert_eq!(with_text("score"), with_text("score"));
        assert!(render("<svg").is_err());
    }
}
