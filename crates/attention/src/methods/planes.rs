//! Random hyperplanes, drawn once for all layers, heads and examples.

use std::f64::consts::PI;
use std::sync::{Arc, Mutex, PoisonError};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use spattn_kernels::hyperplanes::Hyperplanes;

/// `count` hyperplanes from a seed, drawn when the width of the vectors is first known.
pub(super) struct RandomPlanes {
    count: usize,
    seed: u64,
    drawn: Mutex<Option<Drawn>>,
}

/// What was drawn for vectors of one width.
struct Drawn {
    width: usize,
    /// The normal vectors, `[plane][width]`.
    normals: Arc<[f32]>,
    /// The same as a CPU multiplies with them; made when first needed.
    planes: Option<Arc<Hyperplanes>>,
}

impl RandomPlanes {
    /// No hyperplane is drawn yet.
    pub(super) fn new(count: usize, seed: u64) -> Self {
        Self { count, seed, drawn: Mutex::new(None) }
    }

    /// The hyperplanes for vectors of `width` numbers; the same at each call.
    pub(super) fn of_width(&self, width: usize) -> Arc<Hyperplanes> {
        self.with(width, |drawn| {
            let Drawn { normals, planes, .. } = drawn;
            planes.get_or_insert_with(|| Arc::new(Hyperplanes::new(normals, width))).clone()
        })
    }

    /// Their normal vectors, `[plane][width]`, for devices. Layers and prompts share one draw, which takes longer than to hash a layer.
    #[cfg(any(test, feature = "cuda"))]
    pub(super) fn normals_of_width(&self, width: usize) -> Arc<[f32]> {
        self.with(width, |drawn| drawn.normals.clone())
    }

    /// Lends what is drawn for vectors of `width` numbers.
    fn with<T>(&self, width: usize, act: impl FnOnce(&mut Drawn) -> T) -> T {
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *drawn {
            Some(known) if known.width == width => act(known),
            none => {
                let normals = gaussians(self.count * width, self.seed).into();
                act(none.insert(Drawn { width, normals, planes: None }))
            }
        }
    }
}

/// `count` standard normal numbers, by the Box-Muller transform.
pub(super) fn gaussians(count: usize, seed: u64) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut numbers = Vec::with_capacity(count + 1);
    while numbers.len() < count {
        let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
        let (sin, cos) = (2.0 * PI * rng.random::<f64>()).sin_cos();
        numbers.extend([(radius * cos) as f32, (radius * sin) as f32]);
    }
    numbers.truncate(count);
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hyperplanes_are_standard_normal_and_one_draw_for_all_heads() {
        let numbers = gaussians(100_001, 3);
        let moment = |k: i32| numbers.iter().map(|x| f64::from(*x).powi(k)).sum::<f64>() / numbers.len() as f64;
        // Within 4 standard errors: deviations of x, x², x⁴ are 1, √2 and √96.
        for (k, value, deviation) in [(1, 0.0, 1.0), (2, 1.0, 2f64.sqrt()), (4, 3.0, 96f64.sqrt())] {
            assert!((moment(k) - value).abs() < 4.0 * deviation / (numbers.len() as f64).sqrt(), "moment {k}");
        }
        let planes = RandomPlanes::new(16, 1);
        assert!(Arc::ptr_eq(&planes.of_width(16), &planes.of_width(16)));
        assert_eq!((planes.of_width(16).d(), planes.of_width(17).d(), planes.of_width(16).d()), (16, 17, 16));
        assert!(Arc::ptr_eq(&planes.normals_of_width(16), &planes.normals_of_width(16)));
        for width in [16, 17] {
            assert_eq!(planes.normals_of_width(width)[..], gaussians(16 * width, 1));
        }
    }
}
