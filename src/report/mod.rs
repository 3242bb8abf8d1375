//! Tables and plots, all drawn from stored records and summary rows.
