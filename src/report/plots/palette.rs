//! The colours of series: one palette for all figures, for colour-blind readers, greyscale, and light and dark backgrounds.
//!
//! The tests check this: neighbouring colours of the palette differ under protanopia, under deuteranopia and in greyscale, and every
//! colour has enough contrast with white paper and with the dark paper of the page. Methods whose colours are still similar get
//! different markers (`looks.rs`).

use plotters::prelude::RGBColor;

/// The colours of methods and other series, alternating between dark and light.
pub const PALETTE: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(88, 60, 190),
    RGBColor(210, 110, 170),
    RGBColor(140, 36, 20),
    RGBColor(138, 130, 0),
    RGBColor(0, 84, 96),
    RGBColor(0, 150, 90),
];
/// The colour of oracles.
pub const ORACLE: RGBColor = RGBColor(96, 96, 96);
/// The colour of floors.
pub const FLOOR: RGBColor = RGBColor(124, 124, 124);
/// The colour of other programs. It is dark in greyscale too.
pub const PEER: RGBColor = RGBColor(92, 40, 140);

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Intensities of red, green and blue light, from 0 to 1.
    type Light = [f64; 3];

    fn light(RGBColor(red, green, blue): RGBColor) -> Light {
        [red, green, blue].map(|value| {
            let value = f64::from(value) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        })
    }

    fn through(matrix: &[[f64; 3]; 3], of: Light) -> Light {
        matrix.map(|row| row.iter().zip(of).map(|(factor, part)| factor * part).sum::<f64>().clamp(0.0, 1.0))
    }

    /// The matrices of Machado, Oliveira and Fernandes 2009 for full severity.
    const PROTANOPIA: [[f64; 3]; 3] =
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]];
    const DEUTERANOPIA: [[f64; 3]; 3] =
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]];
    const NONE: [[f64; 3]; 3] = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]];
    /// The filter that the page applies to figures on dark paper (`page.css`): it inverts, and rotates the hue by half a turn.
    const HALF_TURN: [[f64; 3]; 3] = [[-0.574, 1.430, 0.144], [0.426, 0.430, 0.144], [0.426, 1.430, -0.856]];

    fn on_dark(RGBColor(red, green, blue): RGBColor) -> RGBColor {
        let [red, green, blue] = through(&HALF_TURN, [red, green, blue].map(|value| 1.0 - f64::from(value) / 255.0));
        let byte = |value: f64| (255.0 * value).round() as u8;
        RGBColor(byte(red), byte(green), byte(blue))
    }

    fn luminance([red, green, blue]: Light) -> f64 {
        0.2126 * red + 0.7152 * green + 0.0722 * blue
    }

    /// The contrast ratio of WCAG.
    fn contrast(a: RGBColor, b: RGBColor) -> f64 {
        let [a, b] = [a, b].map(|colour| luminance(light(colour)) + 0.05);
        a.max(b) / a.min(b)
    }

    /// Light in CIELAB coordinates, under D65.
    fn lab(of: Light) -> [f64; 3] {
        const TO_XYZ: [[f64; 3]; 3] = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]];
        let [x, y, z] = TO_XYZ.map(|row| {
            let share = row.iter().zip(of).map(|(factor, part)| factor * part).sum::<f64>() / row.iter().sum::<f64>();
            if share > 216.0 / 24389.0 { share.cbrt() } else { (24389.0 / 27.0 * share + 16.0) / 116.0 }
        });
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    }

    /// The CIELAB distance as seen by the type of colour vision that sees the least difference.
    pub fn distance(a: RGBColor, b: RGBColor) -> f64 {
        let seen = |eye: &[[f64; 3]; 3]| {
            let [a, b] = [a, b].map(|colour| lab(through(eye, light(colour))));
            a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
        };
        [NONE, PROTANOPIA, DEUTERANOPIA].iter().map(seen).fold(f64::INFINITY, f64::min)
    }

    fn in_grey(a: RGBColor, b: RGBColor) -> f64 {
        (lab(light(a))[0] - lab(light(b))[0]).abs()
    }

    /// The minimum contrast for graphics in WCAG 2.1.
    const LEAST_CONTRAST: f64 = 3.0;
    /// A distance in CIELAB: ten times what can just be distinguished side by side, which is about 2.
    const LEAST_DISTANCE: f64 = 20.0;
    /// A difference in lightness, on a scale from 0 to 100.
    const LEAST_IN_GREY: f64 = 8.0;
    const WHITE: RGBColor = RGBColor(255, 255, 255);
    /// The page's `--paper` in dark mode.
    const DARK: RGBColor = RGBColor(20, 23, 27);

    /// The faults of a palette. Its last colour is a neighbour of its first.
    fn faults(palette: &[RGBColor]) -> Vec<String> {
        let mut faults = Vec::new();
        for (i, colour) in palette.iter().enumerate() {
            let next = palette[(i + 1) % palette.len()];
            let measured = [
                ("contrast on white", contrast(*colour, WHITE), LEAST_CONTRAST),
                ("contrast in the dark", contrast(on_dark(*colour), DARK), LEAST_CONTRAST),
                ("distance to the next", distance(*colour, next), LEAST_DISTANCE),
                ("distance to the next in grey", in_grey(*colour, next), LEAST_IN_GREY),
            ];
            let low = measured.iter().filter(|(_, value, least)| value < least);
            faults.extend(low.map(|(what, value, least)| format!("{what} of {colour:?}: {value:.2} < {least}")));
        }
        faults
    }

    #[test]
    fn colours_can_be_told_apart_by_all_eyes_and_stand_out() {
        assert_eq!(faults(&PALETTE), [""; 0]);
        for grey in [ORACLE, FLOOR, PEER] {
            assert!(contrast(grey, WHITE) >= LEAST_CONTRAST && contrast(on_dark(grey), DARK) >= LEAST_CONTRAST);
        }
    }

    #[test]
    fn bad_colours_are_found() {
        let with = |at: usize, colour: RGBColor| {
            let mut palette = PALETTE;
            palette[at] = colour;
            faults(&palette).join("; ")
        };
        let yellow = with(1, RGBColor(255, 255, 0));
        assert!(yellow.starts_with("contrast on white of RGBColor(255, 255, 0): 1.07 < 3"), "{yellow}");
        assert!(with(4, WHITE).contains("contrast on white"));
        // A red next to an equally light green, which deuteranopia cannot tell apart.
        let red_and_green = faults(&[RGBColor(190, 60, 40), RGBColor(96, 112, 40)]).join("; ");
        assert!(red_and_green.contains("distance to the next of"), "{red_and_green}");
        assert!(with(2, RGBColor(0, 118, 170)).contains("in grey"), "as light as its neighbour");
    }

    #[test]
    fn measures_are_those_of_the_books() {
        assert!((contrast(WHITE, RGBColor(0, 0, 0)) - 21.0).abs() < 1e-9);
        // #767676 is the lightest grey with a contrast of 4.5 on white; #0000ff has 8.59.
        assert!((contrast(RGBColor(118, 118, 118), WHITE) - 4.54).abs() < 0.01);
        assert!((contrast(RGBColor(0, 0, 255), WHITE) - 8.59).abs() < 0.01);
        // The red and green of sRGB in CIELAB.
        let near = |a: [f64; 3], b: [f64; 3]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 0.2);
        assert!(near(lab(light(RGBColor(255, 0, 0))), [53.2, 80.1, 67.2]));
        assert!(near(lab(light(RGBColor(0, 255, 0))), [87.7, -86.2, 83.2]));
        assert_eq!(on_dark(WHITE), RGBColor(0, 0, 0));
    }
}
