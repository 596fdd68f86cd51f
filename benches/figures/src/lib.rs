//! What the plots and tables of the benches share: fonts, colours, a heading with its legend, axes, medians, bars of
//! progress.

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use plotters::chart::MeshStyle;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::prelude::*;

/// A part of a plot.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Font of all texts.
pub const FONT: &str = "sans-serif";
/// Height of [`heading`], in pixels.
pub const BAND: u32 = 44;

const COLOURS: [RGBColor; 4] =
    [RGBColor(214, 39, 40), RGBColor(31, 119, 180), RGBColor(44, 160, 44), RGBColor(148, 103, 189)];

/// The colour of the `index`-th store or policy; after the fourth they come again.
#[must_use]
pub fn colour(index: usize) -> RGBColor {
    COLOURS[index % COLOURS.len()]
}

/// Turns an error of the plotter into ours.
///
/// # Errors
/// The plotter could not draw: the file cannot be written.
pub fn drawn<T, E: std::fmt::Display>(result: std::result::Result<T, E>) -> Result<T> {
    result.map_err(|error| anyhow::anyhow!("drawing: {error}"))
}

/// Draws the title, and below it which colour is which name, `apart` pixels from each other.
///
/// # Errors
/// Those of [`drawn`].
pub fn heading<N: AsRef<str>>(area: &Area<'_>, title: &str, names: &[(N, RGBColor)], apart: u32) -> Result<()> {
    drawn(area.draw(&Text::new(title.to_owned(), (8, 6), (FONT, 15).into_font())))?;
    for (index, (name, colour)) in names.iter().enumerate() {
        let x = 8 + (apart as usize * index) as i32;
        drawn(area.draw(&Rectangle::new([(x, 28), (x + 14, 36)], colour.filled())))?;
        drawn(area.draw(&Text::new(name.as_ref().to_owned(), (x + 18, 26), (FONT, 12).into_font())))?;
    }
    Ok(())
}

/// Gives a mesh the look that all plots have: thin lines across, none upwards.
pub fn plain<X, Y>(mesh: &mut MeshStyle<'_, '_, X, Y, SVGBackend<'_>>)
where
    X: Ranged + ValueFormatter<X::ValueType>,
    Y: Ranged + ValueFormatter<Y::ValueType>,
{
    mesh.disable_x_mesh().bold_line_style(BLACK.mix(0.12)).light_line_style(TRANSPARENT).label_style((FONT, 10));
}

/// The middle of `values`, or the mean of both in the middle; `None` where there is none.
#[must_use]
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    Some(if values.len().is_multiple_of(2) { f64::midpoint(values[middle - 1], upper) } else { upper })
}

/// A bar of `steps` steps, with what is under way and how long the rest will take.
///
/// # Panics
/// Never: the template is valid.
#[must_use]
pub fn progress(steps: u64) -> ProgressBar {
    let template = "{elapsed_precise} {bar:30} {pos}/{len} {msg} (left: {eta})";
    #[expect(clippy::expect_used, reason = "the template is a constant, which a test draws")]
    let style = ProgressStyle::with_template(template).expect("the template is valid");
    ProgressBar::new(steps).with_style(style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median([]), None);
        assert_eq!(median([3.0]), Some(3.0));
        assert_eq!(median([9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 9.0]), Some(3.0));
    }

    #[test]
    fn a_heading_has_its_title_and_all_names() {
        let mut svg = String::new();
        {
            let area = SVGBackend::with_string(&mut svg, (400, BAND)).into_drawing_area();
            heading(&area, "what it is", &[("one", colour(0)), ("other", colour(5))], 100).unwrap();
            area.present().unwrap();
        }
        assert!(["what it is", "one", "other"].iter().all(|text| svg.contains(text)), "{svg}");
        assert!(svg.contains("#D62728") && svg.contains("#1F77B4"), "{svg}");
    }

    #[test]
    fn a_bar_of_progress_is_made() {
        assert_eq!(progress(7).length(), Some(7));
    }
}
