//! A logarithmic scale of a picture.

/// Positive values, and the places between which they lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scale {
    least: f64,
    most: f64,
    places: [f64; 2],
}

impl Scale {
    /// A scale on which all these values have a place. Values that are not positive and finite have none.
    pub(crate) fn over(values: impl IntoIterator<Item = f64>, places: [f64; 2]) -> Scale {
        let is_placed = |value: &f64| value.is_finite() && *value > 0.0;
        let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
        for value in values.into_iter().filter(is_placed) {
            (least, most) = (least.min(value), most.max(value));
        }
        if least > most {
            (least, most) = (1.0, 1.0);
        }
        Scale {
            least,
            most,
            places,
        }
    }

    /// The same values between other places.
    pub(crate) fn between(self, places: [f64; 2]) -> Scale {
        Scale { places, ..self }
    }

    /// The place of a value, or the nearest one. Where all values are equal it is the middle.
    pub(crate) fn at(&self, value: f64) -> f64 {
        let [from, to] = self.places;
        let part = match self.most > self.least {
            true => (value / self.least).ln() / (self.most / self.least).ln(),
            false => 0.5,
        };
        from + (to - from) * part.clamp(0.0, 1.0)
    }

    /// Round values on the scale: powers of ten, and with `fine` their double and fivefold too.
    pub(crate) fn ticks(&self, fine: bool) -> Vec<f64> {
        let (first, last) = (self.least.log10().floor(), self.most.log10().ceil());
        let digits: &[f64] = if fine { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let powers = (first as i32..=last as i32).map(|power| 10.0_f64.powi(power));
        let all = powers.flat_map(|power| digits.iter().map(move |digit| digit * power));
        // A power of ten is not always exact.
        let is_on =
            |value: &f64| (self.least * (1.0 - 1e-9)..=self.most * (1.0 + 1e-9)).contains(value);
        all.filter(is_on).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_factors_are_equal_lengths() {
        let scale = Scale::over([0.01, 100.0, f64::NAN, 0.0, -1.0], [0.0, 80.0]);
        for (value, place) in [(0.01, 0.0), (0.1, 20.0), (1.0, 40.0), (100.0, 80.0)] {
            assert!((scale.at(value) - place).abs() < 1e-9, "{value}");
        }
        // What has no place goes to the nearest end.
        assert_eq!((scale.at(1e9), scale.at(1e-9)), (80.0, 0.0));
        let flipped = scale.between([80.0, 0.0]);
        assert!((flipped.at(10.0) - 20.0).abs() < 1e-9);
    }

    #[test]
    fn one_value_and_none_have_a_scale_too() {
        for values in [&[7.0][..], &[]] {
            assert_eq!(
                Scale::over(values.iter().copied(), [0.0, 80.0]).at(7.0),
                40.0
            );
        }
    }

    #[test]
    fn ticks_are_round_values_on_the_scale() {
        let scale = Scale::over([0.3, 20.0], [0.0, 1.0]);
        assert_eq!(scale.ticks(false), [1.0, 10.0]);
        assert_eq!(scale.ticks(true), [0.5, 1.0, 2.0, 5.0, 10.0, 20.0]);
    }
}
