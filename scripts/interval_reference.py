#!/usr/bin/env python3
"""The reference values in the tests of crates/stats/src/, from scipy and statsmodels (pip install scipy statsmodels).

Neither has Tango's interval. Here it is computed from its definition, by a numerical search for the most likely probabilities
under each difference; the program has a closed form.
"""

import numpy as np
import scipy
import statsmodels
from scipy import optimize, stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint


def tango(gained, lost, n):
    """The difference whose score is 1.96 standard errors away."""
    z = stats.norm.ppf(0.975)

    def likeliest_losses(d):
        # P(loss) = q, P(gain) = q + d, P(same) = 1 - d - 2 q.
        low, high = max(0.0, -d), (1 - d) / 2

        def cost(q):
            parts = [(gained, q + d), (lost, q), (n - gained - lost, 1 - d - 2 * q)]
            return -sum(k * np.log(max(p, 1e-300)) for k, p in parts if k)

        found = optimize.minimize_scalar(cost, bounds=(low, high), method="bounded", options={"xatol": 1e-13})
        return min([low, high, found.x], key=cost)

    def score(d):
        q = likeliest_losses(d)
        return (gained - lost - n * d) / np.sqrt(max(n * (2 * q + d - d * d), 1e-300))

    mean = (gained - lost) / n
    low = -1.0 if mean == -1 else optimize.brentq(lambda d: score(d) - z, -1 + 1e-9, mean, xtol=1e-12)
    high = 1.0 if mean == 1 else optimize.brentq(lambda d: score(d) + z, mean, 1 - 1e-9, xtol=1e-12)
    return low, high


def main():
    print(f"scipy {scipy.__version__}, statsmodels {statsmodels.__version__}")
    print("Student's t, 97.5 %:", [(df, stats.t.ppf(0.975, df)) for df in (1, 2, 19, 99, 100000)])
    print("tail of t = 3.5, df 4:", stats.t.sf(3.5, 4), "normal, 6:", stats.norm.sf(6))
    beta = [(4, 7, 0.8), (0.3, 1.3, 0.025), (59, 2, 0.025), (1, 20, 0.975), (4900.5, 100.5, 0.975), (20, 1, 0.025)]
    print("beta:", [(*b, stats.beta.ppf(b[2], b[0], b[1])) for b in beta])
    counts = [(20, 20), (19, 20), (0, 20), (10, 20), (3, 5), (5, 5), (99, 100), (1, 2)]
    print("Clopper-Pearson:", [(*c, *map(float, proportion_confint(*c, method="beta"))) for c in counts])
    pairs = [(0, 0, 20), (1, 7, 21), (0, 15, 20), (5, 0, 20), (12, 2, 50), (0, 20, 20), (1, 0, 5), (30, 31, 100)]
    print("Tango:", [(*p, *map(float, tango(*p))) for p in pairs])
    tables = [(5, 0), (9, 2), (3, 7), (20, 1)]
    exact = dict(exact=False, correction=False)
    half = [(b, c, float(mcnemar([[0, b], [c, 9]], **exact).pvalue) / 2) for b, c in tables]
    print("McNemar, half:", [(b, c, p if b > c else 1 - p) for b, c, p in half])
    nearest = lambda n: optimize.brentq(lambda p: stats.binom.sf(3, n, p) - 0.8, 1e-9, 1 - 1e-9, xtol=1e-15)
    print("detectable at best:", [(n, nearest(n)) for n in (4, 10, 20, 50, 100)])
    nats = np.array([520, 480, 610, 555, 430]) / 200
    test = stats.ttest_1samp(nats, 0).confidence_interval()
    above = stats.ttest_1samp(nats, 2, alternative="greater").pvalue
    print("Student's interval:", float(test.low), float(test.high), "above 2:", float(above))
    wilson = lambda x, n: tuple(map(float, proportion_confint(x, n, method="wilson")))
    print("Wilson:", wilson(56, 70), wilson(48, 80))
    p = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.324]
    print("Benjamini-Hochberg rejects:", int(multipletests(p, alpha=0.025, method="fdr_bh")[0].sum()))


if __name__ == "__main__":
    main()
