//! The figures of `/metrics` as OTLP has them, under the same names.
//!
//! [`Figure`]s → [`request`] → one metric for each name, one point for each label
//!
//! The SDK's instruments are not used: none of those that are observed carries a histogram, and the counters are there
//! already. Counters and histograms are cumulative from the start of the process.
//!
//! Invariant: what is told here is what [`esker_server::http::Source::figures`] tells, sums included. The last bucket
//! has all that took longer, too, so it has no upper end.

use esker_server::http::{Figure, Value};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics,
    ScopeMetrics, Sum,
};
use opentelemetry_proto::tonic::resource::v1::Resource;

/// The name of what tells spans and figures.
pub const SCOPE: &str = "esker";

/// Since when figures are counted, and when they were read, in nanoseconds of the epoch.
#[derive(Clone, Copy)]
pub struct Times {
    /// The start of the process.
    pub start_ns: u64,
    /// Now.
    pub now_ns: u64,
}

/// All figures, as they are sent.
pub fn request(resource: Resource, figures: Vec<Figure>, times: Times) -> ExportMetricsServiceRequest {
    let mut metrics: Vec<Metric> = Vec::new();
    for figure in figures {
        let attributes = figure.labels.iter().map(|(name, value)| attribute(name, value)).collect();
        // Those of one name come one behind the other.
        let same = metrics.last_mut().filter(|metric| metric.name == figure.name);
        match same {
            Some(metric) => add(metric.data.as_mut(), figure.value, attributes, times),
            None => {
                let mut data = empty(&figure.value);
                add(Some(&mut data), figure.value, attributes, times);
                let unit = unit(&figure.name).to_string();
                let (name, description) = (figure.name, figure.help);
                metrics.push(Metric { name, description, unit, data: Some(data), ..Metric::default() });
            }
        }
    }
    let version = env!("CARGO_PKG_VERSION").to_string();
    let scope = InstrumentationScope { name: SCOPE.into(), version, ..InstrumentationScope::default() };
    let scope_metrics = ScopeMetrics { scope: Some(scope), metrics, ..ScopeMetrics::default() };
    let of_resource =
        ResourceMetrics { resource: Some(resource), scope_metrics: vec![scope_metrics], ..ResourceMetrics::default() };
    ExportMetricsServiceRequest { resource_metrics: vec![of_resource] }
}

fn attribute(name: &str, value: &str) -> KeyValue {
    let value = Some(AnyValue { value: Some(Any::StringValue(value.into())) });
    KeyValue { key: name.into(), value, ..KeyValue::default() }
}

/// The unit that the end of a name says, as UCUM writes it.
fn unit(name: &str) -> &'static str {
    match name.rsplit('_').next() {
        Some("seconds") => "s",
        Some("bytes") => "By",
        _ => "",
    }
}

fn empty(value: &Value) -> Data {
    let aggregation_temporality = AggregationTemporality::Cumulative.into();
    match value {
        Value::Counter(_) => Data::Sum(Sum { data_points: Vec::new(), aggregation_temporality, is_monotonic: true }),
        Value::Gauge(_) => Data::Gauge(Gauge::default()),
        Value::Times(_) | Value::Summed(..) => {
            Data::Histogram(Histogram { data_points: Vec::new(), aggregation_temporality })
        }
    }
}

/// Adds a point; one of another kind than its family is left out, which no source tells.
fn add(data: Option<&mut Data>, value: Value, attributes: Vec<KeyValue>, times: Times) {
    let Times { start_ns, now_ns } = times;
    match (data, value) {
        (Some(Data::Sum(sum)), Value::Counter(value)) => sum.data_points.push(NumberDataPoint {
            attributes,
            start_time_unix_nano: start_ns,
            time_unix_nano: now_ns,
            value: Some(Number::AsDouble(value)),
            ..NumberDataPoint::default()
        }),
        (Some(Data::Gauge(gauge)), Value::Gauge(value)) => gauge.data_points.push(NumberDataPoint {
            attributes,
            time_unix_nano: now_ns,
            value: Some(Number::AsDouble(value)),
            ..NumberDataPoint::default()
        }),
        (Some(Data::Histogram(histogram)), Value::Times(buckets)) => {
            let sum = buckets.iter().fold(0.0, |sum, (end, count)| sum + end * *count as f64);
            histogram.data_points.push(point(&buckets, sum, attributes, times));
        }
        (Some(Data::Histogram(histogram)), Value::Summed(buckets, sum)) => {
            histogram.data_points.push(point(&buckets, sum, attributes, times));
        }
        _ => {}
    }
}

fn point(buckets: &[(f64, u64)], sum: f64, attributes: Vec<KeyValue>, times: Times) -> HistogramDataPoint {
    let ends = buckets.len().saturating_sub(1);
    HistogramDataPoint {
        attributes,
        start_time_unix_nano: times.start_ns,
        time_unix_nano: times.now_ns,
        count: buckets.iter().map(|(_, count)| count).sum(),
        sum: Some(sum),
        bucket_counts: buckets.iter().map(|(_, count)| *count).collect(),
        explicit_bounds: buckets[..ends].iter().map(|(end, _)| *end).collect(),
        ..HistogramDataPoint::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_one_name_are_one_metric_and_keep_what_they_say() {
        let times = Times { start_ns: 5, now_ns: 9 };
        let buckets = vec![(0.5, 1), (1.0, 2), (2.0, 4)];
        let figures = vec![
            Figure::new("one_bytes", "some", Value::Counter(3.0)).labelled("state", "a"),
            Figure::new("one_bytes", "some", Value::Counter(4.0)).labelled("state", "b"),
            Figure::new("two", "more", Value::Gauge(-1.5)),
            Figure::new("three_seconds", "times", Value::Times(buckets.clone())),
            Figure::new("four_seconds", "times", Value::Summed(buckets, 6.25)),
        ];
        let request = request(Resource::default(), figures, times);
        let metrics = &request.resource_metrics[0].scope_metrics[0].metrics;
        let named: Vec<_> = metrics.iter().map(|metric| (&metric.name[..], &metric.unit[..])).collect();
        assert_eq!(named, [("one_bytes", "By"), ("two", ""), ("three_seconds", "s"), ("four_seconds", "s")]);
        let Some(Data::Sum(sum)) = &metrics[0].data else { panic!("{metrics:?}") };
        assert!(sum.is_monotonic && sum.aggregation_temporality() == AggregationTemporality::Cumulative);
        let told: Vec<_> = sum.data_points.iter().map(|point| (point.value, point.start_time_unix_nano)).collect();
        assert_eq!(told, [(Some(Number::AsDouble(3.0)), 5), (Some(Number::AsDouble(4.0)), 5)]);
        assert_eq!(sum.data_points[1].attributes, [attribute("state", "b")]);
        let Some(Data::Gauge(gauge)) = &metrics[1].data else { panic!("{metrics:?}") };
        assert_eq!(gauge.data_points[0].value, Some(Number::AsDouble(-1.5)));
        for (metric, sum) in metrics[2..].iter().zip([10.5, 6.25]) {
            let Some(Data::Histogram(histogram)) = &metric.data else { panic!("{metrics:?}") };
            let point = &histogram.data_points[0];
            assert_eq!((point.count, point.sum, point.time_unix_nano), (7, Some(sum), 9));
            assert_eq!((&point.bucket_counts[..], &point.explicit_bounds[..]), (&[1, 2, 4][..], &[0.5, 1.0][..]));
        }
    }
}
