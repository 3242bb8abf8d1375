//! k-means: Lloyd's iterations from k-means++ seeds (Arthur and Vassilvitskii 2007).
//!
//! It runs on one thread, so the result depends only on the points and the random generator.

use rand::{Rng, RngExt};

use spattn_kernels::linear;
use spattn_kernels::matmul::{matmul, transposed};
use spattn_kernels::topk::argmax_rows;

/// Centroids, and the nearest one for each point.
#[derive(Debug, Clone, PartialEq)]
pub struct Clusters {
    /// The centroids `[centroid][d]`.
    pub centroids: Vec<f32>,
    /// The centroid nearest to each point; of equally near ones, the first.
    pub nearest: Vec<u32>,
}

/// Clusters `points: [point][d]` around `count` centroids, or around as many as there are points. Stops early once no point changes its
/// centroid.
pub fn kmeans(points: &[f32], d: usize, count: usize, iterations: usize, rng: &mut impl Rng) -> Clusters {
    let count = count.min(points.len() / d);
    let mut centroids = seeds(points, d, count, rng);
    let mut nearest = assign(points, &centroids, d);
    for _ in 0..iterations {
        centroids = means(points, d, &nearest, centroids);
        let next = assign(points, &centroids, d);
        if next == nearest {
            break;
        }
        nearest = next;
    }
    Clusters { centroids, nearest }
}

/// Draws points one after the other as seeds, each with a probability proportional to its squared distance from the nearest seed; uniformly
/// if all distances are 0.
fn seeds(points: &[f32], d: usize, count: usize, rng: &mut impl Rng) -> Vec<f32> {
    let n = points.len() / d;
    let mut distances = vec![f64::INFINITY; n];
    let mut centroids = Vec::with_capacity(count * d);
    let mut products = vec![0.0; n];
    let squares: Vec<f32> = points.chunks_exact(d).map(square).collect();
    let mut chosen = if count > 0 { rng.random_range(0..n) } else { 0 };
    for _ in 0..count {
        let centroid = &points[chosen * d..][..d];
        centroids.extend_from_slice(centroid);
        linear::scores(centroid, points, d, &mut products);
        let mut total = 0.0;
        for ((distance, square), product) in distances.iter_mut().zip(&squares).zip(&products) {
            let to_this = (f64::from(*square) - 2.0 * f64::from(*product) + f64::from(squares[chosen])).max(0.0);
            *distance = distance.min(to_this);
            total += *distance;
        }
        distances[chosen] = 0.0;
        chosen = draw(&distances, total, rng);
    }
    centroids
}

/// Draws a position with a probability proportional to its weight.
fn draw(weights: &[f64], total: f64, rng: &mut impl Rng) -> usize {
    let mut rest = rng.random::<f64>() * total;
    for (i, weight) in weights.iter().enumerate() {
        rest -= weight;
        if rest < 0.0 {
            return i;
        }
    }
    rng.random_range(0..weights.len())
}

fn square(row: &[f32]) -> f32 {
    row.iter().map(|x| x * x).sum()
}

/// Number of points compared with all centroids at a time.
const POINTS: usize = 256;

/// Returns the nearest centroid of each point: the one with the largest `x·c − ½‖c‖²`.
fn assign(points: &[f32], centroids: &[f32], d: usize) -> Vec<u32> {
    let count = centroids.len() / d;
    let offsets: Vec<f32> = centroids.chunks_exact(d).map(|c| -0.5 * square(c)).collect();
    let by_channel = transposed(centroids, d);
    let mut products = vec![0.0; POINTS * count];
    let mut nearest = Vec::with_capacity(points.len() / d);
    for points in points.chunks(POINTS * d) {
        let products = &mut products[..points.len() / d * count];
        matmul(points, d, &by_channel, count, products);
        argmax_rows(products, &offsets, &mut nearest);
    }
    nearest
}

/// Returns the mean of each centroid's points. A centroid without points stays unchanged.
fn means(points: &[f32], d: usize, nearest: &[u32], mut centroids: Vec<f32>) -> Vec<f32> {
    let mut sums = vec![0.0f64; centroids.len()];
    let mut counts = vec![0u32; centroids.len() / d];
    for (point, &centroid) in points.chunks_exact(d).zip(nearest) {
        counts[centroid as usize] += 1;
        sums[centroid as usize * d..][..d].iter_mut().zip(point).for_each(|(s, x)| *s += f64::from(*x));
    }
    for ((centroid, sum), &count) in centroids.chunks_exact_mut(d).zip(sums.chunks_exact(d)).zip(&counts) {
        if count > 0 {
            centroid.iter_mut().zip(sum).for_each(|(c, s)| *c = (s / f64::from(count)) as f32);
        }
    }
    centroids
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    fn rng(seed: u64) -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(seed)
    }

    fn noise(n: usize, seed: u64) -> Vec<f32> {
        let mut rng = rng(seed);
        (0..n).map(|_| rng.random_range(-1.0..1.0)).collect()
    }

    fn distance(a: &[f32], b: &[f32]) -> f64 {
        a.iter().zip(b).map(|(x, y)| f64::from(x - y).powi(2)).sum()
    }

    fn error(points: &[f32], d: usize, clusters: &Clusters) -> f64 {
        let centroid = |i: u32| &clusters.centroids[i as usize * d..][..d];
        points.chunks(d).zip(&clusters.nearest).map(|(p, &c)| distance(p, centroid(c))).sum()
    }

    #[test]
    fn planted_clusters_are_found() {
        let (d, count, each) = (6, 9, 40);
        let centres: Vec<f32> = noise(count * d, 1).iter().map(|x| 20.0 * x).collect();
        let mut points = noise(count * each * d, 2);
        for (i, point) in points.chunks_mut(d).enumerate() {
            point.iter_mut().zip(&centres[i % count * d..]).for_each(|(x, c)| *x = *x * 0.1 + c);
        }
        let clusters = kmeans(&points, d, count, 20, &mut rng(3));
        for i in 0..count * each {
            assert_eq!(clusters.nearest[i], clusters.nearest[i % count], "point {i}");
        }
        let mut names = clusters.nearest[..count].to_vec();
        names.sort_unstable();
        assert_eq!(names, (0..count as u32).collect::<Vec<_>>());
    }

    #[test]
    fn every_point_has_its_nearest_centroid_and_every_centroid_is_a_mean() {
        let (d, n) = (5, 400);
        let points = noise(n * d, 4);
        let clusters = kmeans(&points, d, 16, 1000, &mut rng(5));
        for (point, &nearest) in points.chunks(d).zip(&clusters.nearest) {
            let to = |i: usize| distance(point, &clusters.centroids[i * d..][..d]);
            assert!((0..16).all(|i| to(nearest as usize) <= to(i) + 1e-6));
        }
        let moved = means(&points, d, &clusters.nearest, clusters.centroids.clone());
        assert_eq!(moved, clusters.centroids, "it ended because nothing changed");
    }

    #[test]
    fn iterations_and_centroids_lower_the_error() {
        let (d, n) = (8, 600);
        let points = noise(n * d, 6);
        let of = |count, iterations| error(&points, d, &kmeans(&points, d, count, iterations, &mut rng(7)));
        assert!(of(16, 0) > of(16, 1) && of(16, 1) > of(16, 10));
        assert!(of(4, 10) > of(16, 10) && of(16, 10) > of(64, 10));
        assert!(of(600, 0) < 1e-9, "a centroid a point");
    }

    #[test]
    fn few_equal_and_no_points_are_clustered() {
        assert_eq!(kmeans(&[], 3, 4, 5, &mut rng(1)), Clusters { centroids: vec![], nearest: vec![] });
        let one = kmeans(&[1.0, 2.0], 2, 4, 5, &mut rng(1));
        assert_eq!((one.centroids, one.nearest), (vec![1.0, 2.0], vec![0]));
        let equal = kmeans(&[7.0; 30], 3, 4, 5, &mut rng(1));
        assert_eq!((equal.centroids, equal.nearest), (vec![7.0; 12], vec![0; 10]));
    }
}
