//! The collision law, for choosing `K` and `L`: the share of tokens that a shape samples, before any table is built.

use super::MagicPig;
use super::probability::{agreement, sampling_probability};
use super::tables::Shape;
use crate::Configured;

/// The settings of a method that determine its samples, apart from `K` and `L`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CollisionLaw {
    /// Whether keys are centred before they are hashed.
    pub center: bool,
    /// Whether cosines are those of the transform of eq. 8.
    pub simple_lsh: bool,
    /// Number added to a token's probability before its weight is divided by it.
    pub floor: f64,
    least: u8,
}

impl CollisionLaw {
    /// Largest possible `K`.
    pub const MOST_BITS: usize = Shape::MOST_BITS;
    /// Largest possible `L`.
    pub const MOST_TABLES: usize = MagicPig::MOST_TABLES;

    /// The law of a method; `None` if it does not sample by collisions.
    pub fn of(method: &Configured) -> Option<Self> {
        if method.name != super::ENTRY.name {
            return None;
        }
        let value = |key: &str| method.settings.iter().find(|s| s.key == key).map(|s| s.value.as_str());
        Some(Self {
            center: value("center")? == "true",
            simple_lsh: value("simple_lsh")? == "true",
            floor: value("u_floor")?.parse().ok()?,
            least: value("min_collisions")?.parse().ok()?,
        })
    }

    /// Probability that a random hyperplane leaves query and key on one side.
    pub fn agreement(&self, cos: f64) -> f64 {
        agreement(cos)
    }

    /// Probability that a token is sampled from `tables` tables of `bits` bits, given its [`Self::agreement`] (eq. 10).
    pub fn sampled(&self, bits: usize, tables: usize, agreement: f64) -> f64 {
        sampling_probability(Shape { bits, tables }, self.least, agreement)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods::configure;
    use crate::{Policy, expand_grid};

    fn law(spec: &str) -> Option<CollisionLaw> {
        CollisionLaw::of(&configure(&expand_grid(spec).unwrap()[0], &Policy::default()).unwrap())
    }

    #[test]
    fn the_law_is_that_of_the_methods_settings() {
        let law_of = |spec| law(spec).unwrap();
        assert_eq!(law_of("magicpig"), CollisionLaw { center: true, simple_lsh: false, floor: 0.0, least: 2 });
        let other = law_of("magicpig:min_collisions=1,center=false,simple_lsh=true,u_floor=0.25,K=3");
        assert_eq!(other, CollisionLaw { center: false, simple_lsh: true, floor: 0.25, least: 1 });
        assert_eq!(law("quest"), None);
        // One bit and two tables: at a right angle a sign agrees with probability 1/2, and both tables collide with 1/4.
        let right = law_of("magicpig").agreement(0.0);
        assert!((law_of("magicpig").sampled(1, 2, right) - 0.25).abs() < 1e-12);
        assert!((other.sampled(1, 2, right) - 0.75).abs() < 1e-12);
    }
}
