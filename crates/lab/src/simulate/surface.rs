//! How long a stage takes at sizes between those of its table.

use paternoster_batching::CostPoint;

/// The time of a stage at any size: linear in rows and in length between the points, constant below the smallest and
/// proportional beyond the largest. The core predicts in the same way.
#[derive(Clone, Debug)]
pub(super) struct Surface {
    /// For each length, ascending: rows and nanoseconds, by ascending rows.
    columns: Vec<(f64, Vec<(f64, f64)>)>,
}

impl Surface {
    pub(super) fn new(points: &[CostPoint]) -> Self {
        let mut sorted: Vec<&CostPoint> = points.iter().filter(|point| point.rows > 0).collect();
        sorted.sort_by_key(|point| (point.length.max(1), point.rows));
        let mut columns: Vec<(f64, Vec<(f64, f64)>)> = Vec::new();
        for point in sorted {
            let (length, time) = (point.length.max(1) as f64, (f64::from(point.rows), point.took_ns as f64));
            match columns.last_mut() {
                Some((known, times)) if *known == length => times.push(time),
                _ => columns.push((length, vec![time])),
            }
        }
        Self { columns }
    }

    /// Whether the table has times at lengths other than 1.
    pub(super) fn has_lengths(&self) -> bool {
        self.columns.iter().any(|(length, _)| *length > 1.0)
    }

    /// Returns the nanoseconds of a batch of `rows` rows, padded to `length`.
    pub(super) fn ns(&self, rows: u32, length: u64) -> f64 {
        let (rows, length) = (f64::from(rows), length.max(1) as f64);
        let of = |(_, times): &(f64, Vec<(f64, f64)>)| along(times, rows);
        match self.columns.as_slice() {
            [] => 0.0,
            [only] if only.0 == 1.0 => of(only),
            columns => {
                let high = columns.partition_point(|(known, _)| *known <= length);
                if high == 0 {
                    return of(&columns[0]);
                }
                let below = &columns[high - 1];
                match columns.get(high) {
                    None => of(below) * length / below.0,
                    Some(above) => {
                        let weight = (length - below.0) / (above.0 - below.0);
                        of(below) + (of(above) - of(below)) * weight
                    }
                }
            }
        }
    }
}

fn along(times: &[(f64, f64)], rows: f64) -> f64 {
    let high = times.partition_point(|(known, _)| *known <= rows);
    if high == 0 {
        return times[0].1;
    }
    let (below, ns) = times[high - 1];
    match times.get(high) {
        None => ns * rows / below,
        Some((above, more)) => ns + (more - ns) * (rows - below) / (above - below),
    }
}
