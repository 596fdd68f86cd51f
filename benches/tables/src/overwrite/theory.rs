//! What cleaning has to cost under uniform random overwrite.
//!
//! Segments age from full to the victim's utilisation `u` while the rest of the device is overwritten. With a fraction
//! `rho` of the device living, `rho = (u - 1) / ln u`; cleaning a victim copies `u` of it to gain `1 - u`, so each byte
//! of payload is written `1 / (1 - u)` times. Holds for choosing the oldest, and in the limit of large segments for
//! greedy and cost-benefit too, because under uniform traffic the oldest is the emptiest.
//!
//! Source: Menon, A Performance Comparison of RAID-5 and Log-Structured Arrays (1995); Desnoyers, Analytic Modeling of
//! SSD Write Performance (2012).

/// The victim's utilisation on a device of which `rho` lives; 0 to 1 for `rho` of 0 to 1.
pub fn victim(rho: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    // (u - 1) / ln u grows with u.
    for _ in 0..100 {
        let u: f64 = (low + high) / 2.0;
        if (u - 1.0) / u.ln() < rho { low = u } else { high = u }
    }
    (low + high) / 2.0
}

/// Bytes written for each byte of payload on a device of which `rho` lives; grows without bound towards 1.
pub fn write_amplification(rho: f64) -> f64 {
    1.0 / (1.0 - victim(rho.clamp(0.0, 0.999)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fixed_point_is_that_of_the_literature() {
        for (rho, expected) in [(0.5, 1.26), (0.7, 1.88), (0.8, 2.69), (0.9, 5.18)] {
            let found = write_amplification(rho);
            assert!((found - expected).abs() < 0.02, "{rho}: {found}");
            let u = victim(rho);
            assert!(((u - 1.0) / u.ln() - rho).abs() < 1e-9);
        }
        assert!((write_amplification(0.0) - 1.0).abs() < 1e-9);
    }
}
