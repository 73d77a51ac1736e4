//! Tables for display, with columns of minimal width and right-aligned numbers.

use std::fmt;

/// Table with a heading.
#[derive(Clone, Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns a table with these columns.
    pub fn new(heading: &[&str]) -> Table {
        Table { rows: vec![heading.iter().map(|&text| text.to_owned()).collect()] }
    }

    /// Adds a row, whose first cell is its title.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| Some(row.get(column)?.chars().count()))
                .max()
                .unwrap_or_default()
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                match column {
                    0 => line += &format!("  {cell:<width$}"),
                    _ => line += &format!("  {cell:>width$}"),
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Formats a number with separated thousands, as in `31 415`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// Formats a number of bytes in a suitable unit.
pub fn bytes(number: u64) -> String {
    match number {
        0..10_000 => format!("{number} B"),
        10_000..10_000_000 => format!("{:.1} KB", number as f64 / 1e3),
        _ => format!("{:.1} MB", number as f64 / 1e6),
    }
}

/// Returns the median; 0 for an empty list.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    let upper = figures.get(figures.len() / 2).copied().unwrap_or_default();
    let lower = figures.get(figures.len().saturating_sub(1) / 2).copied().unwrap_or_default();
    (upper + lower) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["server", "share"]);
        table.row(["web1".to_owned(), "7".to_owned()]);
        assert_eq!(table.to_string(), "  server  share\n  web1        7\n");
    }

    #[test]
    fn numbers_for_people() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(thousands), ["0", "999", "1 000", "1 234 567"]);
        assert_eq!([12, 12_345, 123_456_789].map(bytes), ["12 B", "12.3 KB", "123.5 MB"]);
        assert_eq!((median(vec![3.0, 1.0, 2.0]), median(vec![4.0, 1.0]), median(vec![])), (2.0, 2.5, 0.0));
    }
}
