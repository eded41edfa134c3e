//! Functions of timestamps and durations.
//! In: nanoseconds. Out: the fields of a date in any time zone.
//! Guarantees: nothing reads a clock.

use jiff::{Timestamp, civil::DateTime, tz::TimeZone};

use crate::{
    cost_model::CostModel,
    eval::Failure,
    function::{Functions, Run},
    time::SECOND,
    types::Type,
    value::Value,
};

use super::text;

pub(super) fn declare(f: &mut Functions) {
    use Type::{Duration, Int, String, Timestamp};
    let parts: [(&'static str, &'static str, &'static str, Run); 10] = [
        (
            "getFullYear",
            "timestamp_to_year",
            "timestamp_to_year_with_tz",
            |_, a| part(a, |d| d.year().into()),
        ),
        (
            "getMonth",
            "timestamp_to_month",
            "timestamp_to_month_with_tz",
            |_, a| part(a, |d| i64::from(d.month()) - 1),
        ),
        (
            "getDayOfYear",
            "timestamp_to_day_of_year",
            "timestamp_to_day_of_year_with_tz",
            |_, a| part(a, |d| i64::from(d.day_of_year()) - 1),
        ),
        (
            "getDayOfMonth",
            "timestamp_to_day_of_month",
            "timestamp_to_day_of_month_with_tz",
            |_, a| part(a, |d| i64::from(d.day()) - 1),
        ),
        (
            "getDate",
            "timestamp_to_day_of_month_1_based",
            "timestamp_to_day_of_month_1_based_with_tz",
            |_, a| part(a, |d| d.day().into()),
        ),
        (
            "getDayOfWeek",
            "timestamp_to_day_of_week",
            "timestamp_to_day_of_week_with_tz",
            |_, a| part(a, |d| d.weekday().to_sunday_zero_offset().into()),
        ),
        (
            "getHours",
            "timestamp_to_hours",
            "timestamp_to_hours_with_tz",
            |_, a| part(a, |d| d.hour().into()),
        ),
        (
            "getMinutes",
            "timestamp_to_minutes",
            "timestamp_to_minutes_with_tz",
            |_, a| part(a, |d| d.minute().into()),
        ),
        (
            "getSeconds",
            "timestamp_to_seconds",
            "timestamp_to_seconds_tz",
            |_, a| part(a, |d| d.second().into()),
        ),
        (
            "getMilliseconds",
            "timestamp_to_milliseconds",
            "timestamp_to_milliseconds_with_tz",
            |_, a| part(a, |d| (d.subsec_nanosecond() / 1_000_000).into()),
        ),
    ];
    for (name, id, zoned_id, run) in parts {
        f.member(name, id, &[Timestamp], Int, CostModel::Unit, run);
        f.member(
            name,
            zoned_id,
            &[Timestamp, String],
            Int,
            CostModel::Unit,
            run,
        );
    }
    f.member(
        "getHours",
        "duration_to_hours",
        &[Duration],
        Int,
        CostModel::Unit,
        |_, args| whole(args, 3600 * SECOND),
    );
    f.member(
        "getMinutes",
        "duration_to_minutes",
        &[Duration],
        Int,
        CostModel::Unit,
        |_, args| whole(args, 60 * SECOND),
    );
    f.member(
        "getSeconds",
        "duration_to_seconds",
        &[Duration],
        Int,
        CostModel::Unit,
        |_, args| whole(args, SECOND),
    );
    f.member(
        "getMilliseconds",
        "duration_to_milliseconds",
        &[Duration],
        Int,
        CostModel::Unit,
        |_, args| whole(args, SECOND / 1000),
    );
}

/// The number of whole units of a duration.
fn whole<'a>(args: &[Value<'a>], unit: i128) -> Result<Value<'a>, Failure> {
    match args {
        [Value::Duration(nanos)] => Ok(Value::Int(
            i64::try_from(i128::from(*nanos) / unit).unwrap_or(i64::MAX),
        )),
        _ => Err(Failure::no_such_overload()),
    }
}

/// A field of the date of a timestamp, in UTC or the time zone of the second argument.
fn part<'a>(args: &[Value<'a>], read: fn(DateTime) -> i64) -> Result<Value<'a>, Failure> {
    let Some(Value::Timestamp(nanos)) = args.first() else {
        return Err(Failure::no_such_overload());
    };
    let (nanos, zone) = match args.get(1) {
        None => (*nanos, TimeZone::UTC),
        Some(_) => in_zone(*nanos, text(args, 1)?)?,
    };
    let at = Timestamp::from_nanosecond(nanos).map_err(|_| Failure::new("timestamp overflow"))?;
    Ok(Value::Int(read(zone.to_datetime(at))))
}

/// The zone of that name; an offset from UTC is added directly, whatever its size.
fn in_zone(nanos: i128, name: &str) -> Result<(i128, TimeZone), Failure> {
    let Some((hours, minutes)) = name.split_once(':') else {
        let zone = match name {
            "" | "UTC" => Some(TimeZone::UTC),
            _ => TimeZone::get(name).ok(),
        };
        return zone
            .map(|zone| (nanos, zone))
            .ok_or_else(|| Failure::new(format!("unknown time zone {name}")));
    };
    let number = |digits: &str| -> Result<i128, Failure> {
        digits.parse::<i32>().map(i128::from).map_err(|_| {
            Failure::new(format!(
                "strconv.Atoi: parsing \"{digits}\": invalid syntax"
            ))
        })
    };
    let hours = number(hours)?;
    let minutes = number(minutes)?;
    let offset = if name.starts_with('-') {
        hours * 60 - minutes
    } else {
        hours * 60 + minutes
    };
    Ok((nanos + offset * 60 * SECOND, TimeZone::UTC))
}
