//! The depths of a grid: at what percentage of the context the text lies that the question
//! asks for.

use spattn_base::error::UsageError;

/// Depths in percent of the context, where 0 is its beginning; at least one, all different.
#[derive(Debug, Clone, PartialEq)]
pub struct Depths(Vec<f64>);

const HINT: &str = "for example steps=11 (0, 10, ..., 100 %) or depths=0+25+50";
/// The most depths of a grid.
const MOST: usize = 1001;

impl Depths {
    /// `steps` evenly spaced depths from 0 to 100; 50 if there is only one.
    pub fn even(steps: usize) -> Self {
        match steps {
            0 | 1 => Self(vec![50.0]),
            _ => Self((0..steps).map(|i| 100.0 * i as f64 / (steps - 1) as f64).collect()),
        }
    }

    /// Reads the value of `steps=N`.
    ///
    /// # Errors
    /// If it is not a number from 1 to 1001.
    pub fn of_steps(value: &str) -> Result<Self, UsageError> {
        let steps = value.parse().ok().filter(|n| (1..=MOST).contains(n));
        let wrong = || UsageError::new(format!("`steps={value}` is not a number from 1 to {MOST}")).hint(HINT);
        steps.map(Self::even).ok_or_else(wrong)
    }

    /// Reads the value of `depths=a+b+c`, in the order given.
    ///
    /// # Errors
    /// If one is not a percentage or is given twice.
    pub fn parse(value: &str) -> Result<Self, UsageError> {
        let mut depths = Vec::new();
        for part in value.split('+') {
            let depth = part.parse::<f64>().ok().filter(|d| (0.0..=100.0).contains(d));
            match depth.filter(|d| !depths.contains(d)) {
                Some(depth) => depths.push(depth),
                None => {
                    let what =
                        format!("`depths={value}`: `{part}` is not a percentage from 0 to 100, or is given twice");
                    return Err(UsageError::new(what).hint(HINT));
                }
            }
        }
        Ok(Self(depths))
    }

    /// Number of depths.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The depths in order.
    pub fn all(&self) -> &[f64] {
        &self.0
    }

    /// The depths as an option of a task's name: `steps=5`, or `depths=0+30` if they are not
    /// evenly spaced.
    pub fn option(&self) -> String {
        if *self == Self::even(self.count()) {
            return format!("steps={}", self.count());
        }
        let list: Vec<String> = self.0.iter().map(f64::to_string).collect();
        format!("depths={}", list.join("+"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_steps_include_both_ends() {
        assert_eq!(Depths::even(11).all()[..3], [0.0, 10.0, 20.0]);
        assert_eq!(Depths::even(11).all()[10], 100.0);
        assert_eq!(Depths::even(1).all(), [50.0]);
    }

    #[test]
    fn depths_are_read_as_they_are_written() {
        for option in ["steps=1", "steps=5", "depths=0+30", "depths=12.5"] {
            let (name, value) = option.split_once('=').unwrap();
            let read = if name == "steps" { Depths::of_steps(value) } else { Depths::parse(value) };
            assert_eq!(read.unwrap().option(), option);
        }
        assert_eq!(Depths::parse("0+50+100").unwrap().option(), "steps=3");
        for wrong in ["", "0+0", "-1", "101", "x", "NaN"] {
            assert!(Depths::parse(wrong).unwrap_err().hint.is_some(), "{wrong}");
        }
        assert!(Depths::of_steps("0").is_err() && Depths::of_steps("2000").is_err());
    }
}
