package io.github.eskerstorage.scalardb;

import com.scalar.db.api.ConditionalExpression;
import com.scalar.db.api.DeleteIf;
import com.scalar.db.api.DeleteIfExists;
import com.scalar.db.api.LikeExpression;
import com.scalar.db.api.MutationCondition;
import com.scalar.db.api.MutationConditionVisitor;
import com.scalar.db.api.PutIf;
import com.scalar.db.api.PutIfExists;
import com.scalar.db.api.PutIfNotExists;
import com.scalar.db.api.Selection.Conjunction;
import com.scalar.db.api.UpdateIf;
import com.scalar.db.api.UpdateIfExists;
import esker.map.v1.MapOuterClass.Compare;
import esker.map.v1.MapOuterClass.Comparison;
import esker.map.v1.MapOuterClass.Condition;
import esker.map.v1.MapOuterClass.Filter;
import esker.map.v1.MapOuterClass.Like;
import java.util.Collection;
import java.util.Set;

/**
 * ScalarDB's conditions as Esker's filters, which the server evaluates.
 *
 * <p>A comparison with null never holds there, as in SQL; only {@code IS NULL} and {@code IS NOT NULL} see nulls, and a
 * column that was never written is null to them.
 */
final class Filters {
  private Filters() {}

  /** One of several conjunctions, each of which is all of its conditions. */
  static Filter any(Set<Conjunction> conjunctions) {
    esker.map.v1.MapOuterClass.Filters.Builder filters = esker.map.v1.MapOuterClass.Filters.newBuilder();
    conjunctions.forEach(conjunction -> filters.addFilters(all(conjunction.getConditions())));
    return filters.getFiltersCount() == 1 ? filters.getFilters(0) : Filter.newBuilder().setAny(filters).build();
  }

  /** All of several conditions. */
  static Filter all(Collection<ConditionalExpression> expressions) {
    esker.map.v1.MapOuterClass.Filters.Builder filters = esker.map.v1.MapOuterClass.Filters.newBuilder();
    expressions.forEach(expression -> filters.addFilters(filter(expression)));
    return filters.getFiltersCount() == 1 ? filters.getFilters(0) : Filter.newBuilder().setAll(filters).build();
  }

  private static Filter filter(ConditionalExpression expression) {
    String name = expression.getColumn().getName();
    switch (expression.getOperator()) {
      case EQ:
        return compare(expression, Compare.COMPARE_EQUAL);
      case NE:
        return compare(expression, Compare.COMPARE_NOT_EQUAL);
      case GT:
        return compare(expression, Compare.COMPARE_GREATER);
      case GTE:
        return compare(expression, Compare.COMPARE_GREATER_OR_EQUAL);
      case LT:
        return compare(expression, Compare.COMPARE_LESS);
      case LTE:
        return compare(expression, Compare.COMPARE_LESS_OR_EQUAL);
      case IS_NULL:
        return Filter.newBuilder().setIsNull(name).build();
      case IS_NOT_NULL:
        return Filter.newBuilder().setIsNotNull(name).build();
      case LIKE:
        return like((LikeExpression) expression, false);
      case NOT_LIKE:
        return like((LikeExpression) expression, true);
      default:
        throw new IllegalArgumentException(
            "operator " + expression.getOperator() + " is not known to this version of the adapter");
    }
  }

  private static Filter compare(ConditionalExpression expression, Compare compare) {
    return Filter.newBuilder()
        .setCompare(
            Comparison.newBuilder()
                .setColumn(expression.getColumn().getName())
                .setCompare(compare)
                .setValue(Values.value(expression.getColumn())))
        .build();
  }

  private static Filter like(LikeExpression expression, boolean negated) {
    return Filter.newBuilder()
        .setLike(
            Like.newBuilder()
                .setColumn(expression.getColumn().getName())
                .setPattern(expression.getTextValue())
                .setEscape(expression.getEscape())
                .setNegated(negated))
        .build();
  }

  /** The condition of a mutation, which the operation checker has let through. */
  static Condition condition(MutationCondition condition) {
    Condition.Builder builder = Condition.newBuilder();
    condition.accept(
        new MutationConditionVisitor() {
          @Override
          public void visit(PutIf condition) {
            builder.setHolds(all(condition.getExpressions()));
          }

          @Override
          public void visit(PutIfExists condition) {
            builder.setExists(true);
          }

          @Override
          public void visit(PutIfNotExists condition) {
            builder.setNotExists(true);
          }

          @Override
          public void visit(DeleteIf condition) {
            builder.setHolds(all(condition.getExpressions()));
          }

          @Override
          public void visit(DeleteIfExists condition) {
            builder.setExists(true);
          }

          @Override
          public void visit(UpdateIf condition) {
            throw refused(condition);
          }

          @Override
          public void visit(UpdateIfExists condition) {
            throw refused(condition);
          }
        });
    return builder.build();
  }

  private static IllegalArgumentException refused(MutationCondition condition) {
    return new IllegalArgumentException("storages take no condition " + condition + ": it is one of transactions");
  }
}
