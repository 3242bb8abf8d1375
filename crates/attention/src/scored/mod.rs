//! Methods of the form SCORE → SELECT: a [`Scorer`](scorer::Scorer), a [`Picker`](select::Picker) and a
//! [`Granularity`](granularity::Granularity) form a [`Method`](crate::Method), [`Scored`](method::Scored).

pub(crate) mod coded;
pub(crate) mod granularity;
pub(crate) mod method;
pub(crate) mod scorer;
pub(crate) mod select;
