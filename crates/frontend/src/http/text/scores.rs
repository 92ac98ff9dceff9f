//! The scores of classes, made of the numbers that a model gives.

use std::{borrow::Cow, sync::Arc};

use paternoster_model::text;
use paternoster_repository::ModelVersion;
use serde::{Serialize, Serializer};

use super::rows::Row;

/// Memory for each class of a row, while its scores are written.
pub(super) const SORTED_BYTES: usize = 2 * size_of::<(f32, u32)>();

/// How scores are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// As the model gives them.
    Raw,
    /// `exp` of each, divided by their sum; of a single class, the logistic function.
    OneClass,
    /// The logistic function of each, because several classes may be true.
    ManyClasses,
}

impl Form {
    /// Returns the form of a model's scores.
    pub(super) fn of(version: &ModelVersion, raw: bool) -> Self {
        match () {
            () if raw => Self::Raw,
            () if version.is_multi_label() => Self::ManyClasses,
            () => Self::OneClass,
        }
    }

    /// Returns the function from a class's number to its score.
    fn function(self, logits: impl ExactSizeIterator<Item = f32> + Clone) -> impl Fn(f32) -> f32 {
        let form = if logits.len() == 1 && self == Self::OneClass { Self::ManyClasses } else { self };
        let most = logits.clone().fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = logits.map(|logit| (logit - most).exp()).sum();
        move |logit| match form {
            Self::Raw => logit,
            Self::OneClass => (logit - most).exp() / sum,
            Self::ManyClasses => logistic(logit),
        }
    }
}

/// The logistic function.
pub(super) fn logistic(logit: f32) -> f32 {
    1.0 / (1.0 + (-logit).exp())
}

/// The scores of all texts, which are written without building them.
pub(super) struct Predictions {
    pub(super) rows: Vec<Row>,
    pub(super) form: Form,
    /// Whether there is one text, and not a list of one.
    pub(super) is_one: bool,
    /// Has the names of the classes.
    pub(super) version: Arc<ModelVersion>,
}

impl Serialize for Predictions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let output = self.version.spec().output_index(text::LOGITS);
        let labels = output.map(|output| self.version.servable().labels(output)).unwrap_or_default();
        let of_row = |row| Classes { values: Row::values(row), form: self.form, labels: &labels };
        match &self.rows[..] {
            [only] if self.is_one => of_row(only).serialize(serializer),
            rows => serializer.collect_seq(rows.iter().map(of_row)),
        }
    }
}

/// The scores of one text, the highest first.
struct Classes<'a, V> {
    values: V,
    form: Form,
    labels: &'a [String],
}

#[derive(Serialize)]
struct Prediction<'a> {
    score: f32,
    label: Cow<'a, str>,
}

impl<V: ExactSizeIterator<Item = f32> + Clone> Serialize for Classes<'_, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut sorted: Vec<(f32, u32)> = self.values.clone().zip(0..).collect();
        sorted.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        let score = self.form.function(self.values.clone());
        serializer.collect_seq(sorted.into_iter().map(|(logit, class)| {
            let named = self.labels.get(class as usize).map(|label| Cow::Borrowed(&**label));
            Prediction { score: score(logit), label: named.unwrap_or_else(|| Cow::Owned(format!("LABEL_{class}"))) }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scored(form: Form, logits: &[f32]) -> Vec<(String, f32)> {
        let labels = ["a", "b"].map(str::to_owned);
        let classes = Classes { values: logits.iter().copied(), form, labels: &labels };
        let written = serde_json::to_value(&classes).expect("JSON");
        let read = |one: &serde_json::Value| {
            (one["label"].as_str().unwrap_or_default().to_owned(), one["score"].as_f64().unwrap_or(f64::NAN) as f32)
        };
        written.as_array().expect("a list").iter().map(read).collect()
    }

    fn scores(form: Form, logits: &[f32]) -> Vec<f32> {
        scored(form, logits).into_iter().map(|(_, score)| score).collect()
    }

    #[test]
    fn scores_add_up_to_one_unless_several_classes_may_be_true() {
        assert_eq!(scores(Form::OneClass, &[0.0, 1000.0, 1000.0]), [0.5, 0.5, 0.0], "no overflow");
        assert_eq!(scores(Form::OneClass, &[0.0]), [0.5]);
        assert_eq!(scores(Form::ManyClasses, &[0.0, 1000.0]), [1.0, 0.5]);
        assert_eq!(scores(Form::Raw, &[0.0, 1000.0]), [1000.0, 0.0]);
    }

    #[test]
    fn classes_are_in_the_order_of_their_numbers_where_scores_are_the_same() {
        let names = |form, logits: &[f32]| -> Vec<String> {
            scored(form, logits).into_iter().map(|(label, _)| label).collect()
        };
        for form in [Form::Raw, Form::OneClass, Form::ManyClasses] {
            assert_eq!(names(form, &[40.0, 90.0, 60.0]), ["b", "LABEL_2", "a"], "{form:?}");
        }
        assert_eq!(names(Form::Raw, &[1.0, 1.0, 1.0]), ["a", "b", "LABEL_2"], "ties stay as they are");
    }
}
